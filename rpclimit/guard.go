package rpclimit

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/status"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
)

// Guard checks the limits of calls before their handlers run. One is enough for all interceptors of
// a program.
//
// It is safe for concurrent use. Its fields must not change once it is used.
type Guard struct {
	// Limiter decides: a [*ratelimit.Coalesced] under load, a [*ratelimit.Autocommit], or a
	// [*ratelimit.FailOpen] over one of them. It has no default. Only Pass of an adapter works
	// without it.
	Limiter interface {
		RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	}

	// Timeout bounds each decision: if the database does not answer in time, the call is refused
	// with Unavailable. Default: the deadline of the call's context, or [ratelimit.Config]'s
	// Timeout if it has none.
	Timeout time.Duration

	// Fields is how clients learn what is left: in the metadata of the answer, under the names of
	// [httplimit.Fields]. With [httplimit.None] a denial still has Retry-After. Each interceptor
	// adds its own. Default: [httplimit.Draft10].
	Fields httplimit.Fields

	// Logger gets every call that is refused with InvalidArgument, Internal, Unavailable or
	// DeadlineExceeded. Default: [slog.Default].
	Logger *slog.Logger
}

// errAhead is for a grant that an interceptor cannot wait for.
var errAhead = fmt.Errorf("rpclimit: granted for later, so the handler must not run yet: "+
	"OrReserve and Within are for handlers' own calls (%w)", ratelimit.ErrInvalid)

// Take takes what asks return for a call, in one call of the Limiter: all are granted, or nothing
// is taken. It is for adapters. They pass the result to [Guard.Answer], and run the handler with
// the context that Take returns, in which [FromContext] finds the result.
//
// If the asks return nothing, the Result is OK and not decided, and FromContext finds none. A
// request that is granted for later is an error that matches [ratelimit.ErrInvalid], and its tokens
// stay taken. A Guard without a Limiter, or a call without asks, is such an error, too.
func (g *Guard) Take(
	ctx context.Context, call *Call, asks []Ask,
) (context.Context, ratelimit.Result, error) {
	requests, err := gather(ctx, call, asks)
	if err != nil {
		return ctx, ratelimit.Result{}, err
	}
	if len(requests) == 0 {
		return ctx, ratelimit.Result{OK: true}, nil
	}
	if g.Limiter == nil {
		return ctx, ratelimit.Result{}, &ratelimit.InvalidError{Field: "Guard.Limiter", Value: nil,
			Want: "an Autocommit, a Coalesced or a FailOpen"}
	}
	asked := ctx
	if g.Timeout > 0 {
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, g.Timeout)
		defer cancel()
	}
	res, err := g.Limiter.RateLimit(asked, requests...)
	switch {
	case err != nil:
		return ctx, ratelimit.Result{}, err
	case !res.RunAt.IsZero():
		return ctx, ratelimit.Result{}, errAhead
	case !res.OK:
		return ctx, res, nil
	}
	return context.WithValue(ctx, resultKey{}, res), res, nil
}

func gather(ctx context.Context, call *Call, asks []Ask) ([]ratelimit.Request, error) {
	if len(asks) == 0 {
		return nil, &ratelimit.InvalidError{Field: "asks", Value: nil, Want: "at least one"}
	}
	var requests []ratelimit.Request
	for _, ask := range asks {
		more, err := ask(ctx, call)
		if err != nil {
			return nil, err
		}
		requests = append(requests, more...)
	}
	return requests, nil
}

// Answer returns what the client gets for the result of [Guard.Take], or of a handler's own call:
// metadata, whose keys are in the canonical form of HTTP, and a status, which is nil if the call
// may continue. It is for adapters, and logs as [Guard.Logger] says.
//
//	ResourceExhausted  it is denied: with RetryInfo, and a QuotaFailure that names the limits
//	PermissionDenied   it has no key, or one that the database cannot hold
//	InvalidArgument    it costs more than its limit could ever grant
//	Internal           the call of the limiter is wrong: see ratelimit.ErrInvalid
//	Canceled           the client has gone before the decision
//	DeadlineExceeded   the client's deadline has passed before the decision
//	Unavailable        any other error: without a decision there is no grant
//
// The delay in RetryInfo never ends before RetryAt, by the database's clock. It is longer by a
// random time, up to a fifth and at most a minute, so that clients that were denied together do not
// return together. The key retry-after is as long at least, in whole seconds, with a random time of
// its own. No other status says when to
// retry, and no status contains a key or an error of the database.
func (g *Guard) Answer(
	ctx context.Context, procedure string, res ratelimit.Result, err error,
) (http.Header, *status.Status) {
	header := http.Header{}
	var refusal httplimit.Refusal
	web := httplimit.Guard{ // so that both packages call the same end by the same name
		Fields: g.Fields, Logger: silent,
		Refuse: func(_ http.ResponseWriter, _ *http.Request, r httplimit.Refusal) { refusal = r },
	}
	if web.Pass(headerOnly(header), &http.Request{}, res, err) {
		return header, nil
	}
	s := statusOf(ctx, refusal)
	g.log(ctx, procedure, code.Code(s.Code), refusal.Err)
	return header, s
}

func (g *Guard) log(ctx context.Context, procedure string, c code.Code, err error) {
	level := slog.LevelError
	switch c {
	case code.Code_RESOURCE_EXHAUSTED, code.Code_PERMISSION_DENIED, code.Code_CANCELLED:
		return // the client's doing
	case code.Code_INVALID_ARGUMENT, code.Code_DEADLINE_EXCEEDED:
		level = slog.LevelWarn
	}
	cmp.Or(g.Logger, slog.Default()).Log(ctx, level, "rpclimit: a call is refused",
		"code", c.String(), "procedure", procedure, "error", err)
}

var silent = slog.New(slog.DiscardHandler)

// headerOnly is a ResponseWriter for a Guard of httplimit, which writes nothing but header fields
// if it has a Refuse.
type headerOnly http.Header

func (h headerOnly) Header() http.Header       { return http.Header(h) }
func (headerOnly) Write(b []byte) (int, error) { return len(b), nil }
func (headerOnly) WriteHeader(int)             {}

type resultKey struct{}

// FromContext returns the result with which the innermost interceptor has let the call pass: use it
// to give back tokens, or to settle them. It returns false if the call was not limited. The result
// of a [ratelimit.FailOpen] may be undecided.
func FromContext(ctx context.Context) (ratelimit.Result, bool) {
	res, ok := ctx.Value(resultKey{}).(ratelimit.Result)
	return res, ok
}
