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

// Guard checks the limits of requests before their handlers run. One is enough for all routes of a
// program; [Guard.Limit] makes the middleware of each route.
//
// It is safe for concurrent use. Its fields must not change once it is used.
type Guard struct {
	// Limiter decides: a [*ratelimit.Coalesced] under load, a [*ratelimit.Autocommit], or a
	// [*ratelimit.FailOpen] over one of them. It has no default. Only [Guard.Pass] works without
	// it.
	Limiter interface {
		RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	}

	// Timeout bounds each decision, because a database may hang. It does not bound an Ask that
	// looks something up. Default: the deadline of the request's context, or [ratelimit.Config]'s
	// Timeout if it has none.
	Timeout time.Duration

	// Fields is the format in which clients learn what is left. Default: [Draft10].
	Fields Fields

	// Refuse answers instead of [Refusal.Write], which it may call for answers that it does not
	// change. The header fields are set by then.
	Refuse func(w http.ResponseWriter, r *http.Request, refusal Refusal)

	// Logger gets every request that is refused with 400, 500 or 503, unless that is because the
	// client has gone. Default: [slog.Default].
	Logger *slog.Logger
}

// errAhead is for what a middleware cannot wait for.
var errAhead = errors.New("httplimit: granted for later, so the handler must not run yet: " +
	"OrReserve and Within are for handlers' own calls")

// Limit is a middleware for any router. A request reaches the handler if all of asks are granted,
// in one call. Otherwise it takes nothing and is refused as [Guard.Pass] says. The take is
// committed when the handler begins; the handler may give back the result of [FromContext].
//
// The handler gets the same ResponseWriter, with the fields set in its header.
//
// No ask may reserve, with OrReserve or Within: a request that is granted for later is refused with
// 500 and logged, and its tokens stay taken. Without a Limiter, or without asks, every request is
// refused with 500. A request whose asks return nothing, as with [Ask.Unless], is not limited.
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

// Pass sets the fields of a result in the answer's header, and reports whether the request may
// continue. If it returns false, it has answered. The middleware uses it, and so can handlers that
// call the limiter themselves, for example in a transaction: call it after COMMIT, with what
// [ratelimit.Limiter.InTx] has returned. The denial may be in err.
//
// A denial is 429, with a Retry-After in whole seconds, at least 1, that is never earlier than
// RetryAt or any t of the fields. A random time is added, so that clients that were denied together
// do not return together: up to a fifth of the wait, but up to a second for short waits, and never
// more than a minute. No other answer says when to retry, or what was wrong. 403 is for a request
// without a key, and for a key that the database cannot store; 400 for a request that costs more
// than its limit could ever grant; 500 for a call that is wrong in another way
// ([ratelimit.ErrInvalid]); 503 for any other error: no answer is no grant.
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
			res = ratelimit.Result{Limit: denied.Limit, Key: denied.Key, At: denied.At,
				RetryAt: denied.RetryAt}
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
	case refusal.Status == http.StatusForbidden, errors.Is(refusal.Err, context.Canceled) &&
		errors.Is(r.Context().Err(), context.Canceled): // the client's doing
		return
	case refusal.Status == http.StatusBadRequest:
		level = slog.LevelWarn
	}
	cmp.Or(g.Logger, slog.Default()).Log(r.Context(), level, "httplimit: a request is refused",
		"status", refusal.Status,
		"method", r.Method, "route", r.Pattern, "error", refusal.Err)
}

type resultKey struct{}

// FromContext returns the result with which the innermost Guard has let the request pass: use it to
// give back tokens, or to settle them. It returns false if the request was not limited. The result
// of a [ratelimit.FailOpen] may be undecided.
func FromContext(ctx context.Context) (ratelimit.Result, bool) {
	res, ok := ctx.Value(resultKey{}).(ratelimit.Result)
	return res, ok
}
