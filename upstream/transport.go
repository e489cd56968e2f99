package upstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/ratelimit"
)

// Waiter is what a [Transport] waits with: a [*ratelimit.Autocommit] is one.
type Waiter interface {
	Wait(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error
}

// Transport keeps the calls of an API's client within the API's limits, over all processes that
// share them:
//
//	client := &http.Client{Timeout: time.Minute, Transport: &upstream.Transport{
//		Limiter: limiter.Autocommit(pool),
//		Requests: func(r *http.Request) []ratelimit.Request {
//			return []ratelimit.Request{PartnerAPI.For(r.URL.Host)}
//		},
//	}}
//
// Each request first waits for its turn, as with [ratelimit.Autocommit.Wait], until its context
// ends, which includes the client's Timeout. A request that would have to wait longer is not sent:
// its error is a [*ratelimit.DeniedError], which [errors.As] finds in the error of the client.
//
// When the API answers 429, or 503 and says for how long, the Transport pauses the limits of that
// request before it returns the answer: for as long as [RetryAfter] returns, and at most MaxPause.
// An answer that says 0 pauses nothing. Until the pause is over no further call is sent. The answer
// is returned as it is: the Transport does not try again, since only the caller knows what may be
// sent twice. Tokens of a request that failed stay spent, as the API may have counted it.
//
// It is safe for concurrent use. Its fields must not change once it is used.
type Transport struct {
	// Base sends the requests. Default: [http.DefaultTransport].
	Base http.RoundTripper

	// Limiter has no default.
	Limiter Waiter

	// Requests returns what an HTTP request takes from which limits. It must not change the HTTP
	// request. If it returns none, the call is not limited. Default: none.
	Requests func(*http.Request) []ratelimit.Request

	// Unsaid is the length of the pause after a 429 that does not say how long to wait. MaxPause
	// does not bound it. With 0 or less it is a minute.
	Unsaid time.Duration

	// MaxPause bounds how long one answer may pause the limits. An answer that asks for more pauses
	// them for MaxPause. Then the next call is sent, and if the API refuses that too, the limits
	// are paused again. So a wrong answer stops the calls of all processes for MaxPause at most,
	// and an API that really wants a longer pause gets one call, or a few, in each MaxPause. Raise
	// it for an API whose quota is per day. More than 366 days means 366 days. With 0 or less it is
	// an hour.
	MaxPause time.Duration

	// Logger gets the error if a pause could not be set. The answer is still returned. Default:
	// [slog.Default].
	Logger *slog.Logger
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var requests []ratelimit.Request
	if t.Requests != nil {
		requests = t.Requests(r)
	}
	if len(requests) == 0 {
		return t.base().RoundTrip(r)
	}
	if err := t.wait(r.Context(), requests); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	resp, err := t.base().RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if d := t.pause(resp); d > 0 {
		ctx, cancel := grace.Now(r.Context())
		defer cancel()
		if err := t.Limiter.Pause(ctx, d, requests...); err != nil {
			cmp.Or(t.Logger, slog.Default()).ErrorContext(ctx,
				"upstream: the limits are not paused, though the API asks for it",
				"host", r.URL.Host, "for", d, "error", err)
		}
	}
	return resp, nil
}

func (t *Transport) wait(ctx context.Context, requests []ratelimit.Request) error {
	if t.Limiter == nil {
		return errors.New("upstream: the Transport has no Limiter")
	}
	_, err := t.Limiter.Wait(ctx, requests...)
	return err
}

// pause is for how long the API asks to be left alone, or 0.
func (t *Transport) pause(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests &&
		resp.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	d, ok := RetryAfter(resp.Header)
	switch {
	case ok:
		return min(d, t.maxPause())
	case resp.StatusCode == http.StatusServiceUnavailable:
		return 0
	case t.Unsaid > 0:
		return min(t.Unsaid, most) // as long as a pause may be
	}
	return time.Minute
}

func (t *Transport) maxPause() time.Duration {
	if t.MaxPause > 0 {
		return t.MaxPause
	}
	return time.Hour
}

// CloseIdleConnections closes those of Base, if it can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}
