package httplimit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Guard asks the limits of requests before their handlers run. One is enough for all routes of a program; [Guard.Limit] makes the
// middleware of each.
//
// It is safe for concurrent use. Its fields must not change once it is used.
type Guard struct {
	// Limiter decides: a [*ratelimit.Coalesced] under load, a [*ratelimit.Autocommit], or a [*ratelimit.FailOpen] over one of them.
	// It has no default, and only [Guard.Pass] does without.
	Limiter interface {
		RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	}

	// Timeout is for each decision: a database that hangs is down, too. Default: that of the request's context alone.
	Timeout time.Duration

	// Fields is how clients are told what is left. Default: [Draft10].
	Fields Fields

	// Refuse answers in place of [Refusal.Write], which it may call for what it leaves as it is. The header fields are set by then.
	Refuse func(w http.ResponseWriter, r *http.Request, refusal Refusal)

	// Logger is told of every request that is refused with 400, 500 or 503. Default: [slog.Default].
	Logger *slog.Logger
}

// errAhead is for what a middleware cannot wait for.
var errAhead = errors.New("httplimit: granted ahead of time, so that the handler must not run yet: " +
	"OrReserve and Within are for handlers' own calls")

// Limit is a middleware that fits any router: a request goes on if all of asks are granted, in one call, and otherwise takes
// nothing and is refused as [Guard.Pass] says. The tokens are taken for good when the handler begins, whatever it does; it may
// give back what [FromContext] has.
//
// The handler gets the very ResponseWriter that came, with the fields set in its header.
//
// No ask may reserve, by OrReserve or Within: what is granted ahead of time is refused with 500 and logged, and stays taken. Without
// a Limiter, or without asks, every request is refused with 500. Who asks nothing, as [Ask.Unless] has it, goes on unlimited.
func (g *Guard) Limit(asks ...Ask) func(http.Handler) http.Handler {
	asks = slices.Clone(asks)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests, err := gather(r, asks)
			if err == nil && len(requests) == 0 {
				next.ServeHTTP(w, r)
				return
			}
			var res ratelimit.Result
			if err == nil {
				res, err = g.take(r.Context(), requests)
			}
			if g.Pass(w, r, res, err) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), resultKey{}, res)))
			}
		})
	}
}

func gather(r *http.Request, asks []Ask) ([]ratelimit.Request, error) {
	if len(asks) == 0 {
		return nil, &ratelimit.InvalidError{Field: "asks", Value: nil, Want: "at least one"}
	}
	var requests []ratelimit.Request
	for _, ask := range asks {
		more, err := ask(r)
		if err != nil {
			return nil, err
		}
		requests = append(requests, more...)
	}
	return requests, nil
}

func (g *Guard) take(ctx context.Context, requests []ratelimit.Request) (ratelimit.Result, error) {
	if g.Limiter == nil {
		return ratelimit.Result{}, &ratelimit.InvalidError{Field: "Guard.Limiter", Value: nil,
			Want: "an Autocommit, a Coalesced or a FailOpen"}
	}
	if g.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.Timeout)
		defer cancel()
	}
	res, err := g.Limiter.RateLimit(ctx, requests...)
	if err == nil && !res.RunAt.IsZero() {
		err = errAhead
	}
	return res, err
}

// Pass sets the fields of a result in the answer's header, and reports whether the request may go on. If not, it has answered. It
// is what the middleware does with its own, and for handlers who call the limiter themselves, in a transaction say: after COMMIT, with
// what [ratelimit.Limiter.InTx] has returned, whose denial may be err.
//
// A denial is 429, with a Retry-After that is no earlier than RetryAt, nor than any t of the fields, in whole seconds, and
// at least 1: up to a fifth later, or up to a second if that is more, and never more than a minute, so that those who were denied
// together do not come back together. No other answer says when to come again, or what was wrong. 403 is for a request without a
// key, and for a key that the database cannot hold; 400 for one that costs more than its limit could ever grant; 500 for a call that
// is wrong in another way ([ratelimit.ErrInvalid]); 503 for any other error: without an answer there is no grant.
func (g *Guard) Pass(w http.ResponseWriter, r *http.Request, res ratelimit.Result, err error) bool {
	if err == nil {
		err = res.Err()
	}
	var denied *ratelimit.DeniedError
	switch {
	case err == nil:
		g.Fields.write(w.Header(), itemsOf(res), false)
		return true
	case errors.As(err, &denied):
		if res.RetryAt.IsZero() { // all that the caller has kept
			res = ratelimit.Result{Limit: denied.Limit, Key: denied.Key, At: denied.At, RetryAt: denied.RetryAt}
		}
		g.refuse(w, r, g.denial(w.Header(), res))
	default:
		refusal := refusalOf(err)
		g.log(r, refusal)
		g.refuse(w, r, refusal)
	}
	return false
}

// denial sets the header fields of one.
func (g *Guard) denial(h http.Header, res ratelimit.Result) Refusal {
	refusal := Refusal{Status: http.StatusTooManyRequests, Result: res}
	items := itemsOf(res)
	for _, it := range items {
		if it.denied {
			refusal.Policies = append(refusal.Policies, it.name)
		}
	}
	if len(items) == 0 {
		refusal.Policies = []string{policy(res.Limit)}
	}
	after := g.Fields.write(h, items, true)
	h.Set("Retry-After", strconv.FormatInt(jitter(max(1, seconds(res.RetryAfter()), after)), 10))
	return refusal
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, refusal Refusal) {
	if g.Refuse != nil {
		g.Refuse(w, r, refusal)
		return
	}
	refusal.Write(w)
}

func (g *Guard) log(r *http.Request, refusal Refusal) {
	level := slog.LevelError
	switch {
	case refusal.Status == http.StatusForbidden, errors.Is(r.Context().Err(), context.Canceled): // the client's doing
		return
	case refusal.Status == http.StatusBadRequest:
		level = slog.LevelWarn
	}
	cmp.Or(g.Logger, slog.Default()).Log(r.Context(), level, "httplimit: a request is refused", "status", refusal.Status,
		"method", r.Method, "route", r.Pattern, "error", refusal.Err)
}

type resultKey struct{}

// FromContext is the result by which a handler has come to run, of the innermost Guard: to give back what was not used, or to
// settle it. False if the request was not limited. That of a [ratelimit.FailOpen] may be undecided.
func FromContext(ctx context.Context) (ratelimit.Result, bool) {
	res, ok := ctx.Value(resultKey{}).(ratelimit.Result)
	return res, ok
}
