package weirtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Verbs is what the helpers for balances need: an [*ratelimit.Autocommit], a [*ratelimit.Coalesced]
// or a [*Limiter].
type Verbs interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error
	Value(ctx context.Context, request ratelimit.Request) (ratelimit.State, error)
}

// Granted fails the test unless a call was granted for now.
func Granted(t testing.TB, res ratelimit.Result, err error) {
	t.Helper()
	if err != nil || !res.OK || !res.RunAt.IsZero() {
		t.Fatalf("%s; want it granted now", Describe(res, err))
	}
}

// Reserved fails the test unless a call was granted for later.
func Reserved(t testing.TB, res ratelimit.Result, err error) {
	t.Helper()
	if err != nil || !res.OK || res.RunAt.IsZero() {
		t.Fatalf("%s; want it granted ahead", Describe(res, err))
	}
}

// Denied fails the test unless a call was denied by the limit; if several limits denied, that is
// the one whose tokens come last. The denial may be in the Result or in the error, as the code
// under test may return [ratelimit.Result.Err]. If it is in the error, the Result does not matter.
func Denied(t testing.TB, res ratelimit.Result, err error, by ratelimit.Limit) {
	t.Helper()
	var denied *ratelimit.DeniedError
	if !errors.As(cmp.Or(err, res.Err()), &denied) || denied.Limit != by.Name() {
		t.Fatalf("%s; want it denied by %q", Describe(res, err), by.Name())
	}
}

// Describe returns the outcome of a call in one line, for messages.
func Describe(res ratelimit.Result, err error) string {
	var b strings.Builder
	var denied *ratelimit.DeniedError
	switch {
	case errors.As(err, &denied):
		return err.Error()
	case err != nil:
		return "failed: " + err.Error()
	case res.OK && !res.Decided():
		return "let through without a decision"
	case res.OK && res.RunAt.IsZero():
		fmt.Fprintf(&b, "granted at %s", stamp(res.At))
	case res.OK:
		fmt.Fprintf(&b, "granted at %s, to run in %v, at %s, because of %s", stamp(res.At),
			res.RunAt.Sub(res.At), stamp(res.RunAt), name(res.Limit, res.Key))
	case res.RetryAt.IsZero():
		return "no decision: the zero Result"
	default:
		fmt.Fprintf(&b, "denied at %s by %s, until in %v, at %s", stamp(res.At),
			name(res.Limit, res.Key), res.RetryAfter(), stamp(res.RetryAt))
	}
	for _, o := range res.Outcomes {
		fmt.Fprintf(&b, "; %s has %v of %v", name(o.Limit, o.Key), o.Value, o.Capacity)
	}
	return b.String()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func name(limit, key string) string {
	if key == "" {
		return limit
	}
	return fmt.Sprintf("%s for %q", limit, key)
}

// Drain takes all tokens of the request's limit and key, so that the next call is denied. With a
// running clock, tokens flow in before that call: stop the clock, or choose a rule that is slow
// enough. The count of the request and its Leave do not matter.
func Drain(t testing.TB, v Verbs, request ratelimit.Request) {
	t.Helper()
	for range 100 {
		s := state(t, v, request)
		if !s.PausedUntil.IsZero() {
			t.Fatalf("%s is paused until %s, so nothing can be taken", request.Count(0),
				stamp(s.PausedUntil))
		}
		if s.Value <= 0 {
			return
		}
		res, err := v.RateLimit(t.Context(), request.Leave(0).Count(s.Value))
		var invalid *ratelimit.InvalidError
		if errors.As(err, &invalid) && s.Value < 1e-6 {
			return // a rest that is too small to be taken
		}
		if err != nil {
			t.Fatalf("drain %s: %v", request.Count(s.Value), err)
		}
		if res.OK {
			return
		}
	}
	t.Fatalf("drain %s: others take from it, and give back, all the time", request.Count(0))
}

// Fill makes the request's limit and key full again. Its count does not matter.
func Fill(t testing.TB, v Verbs, request ratelimit.Request) {
	t.Helper()
	if err := v.ResetRateLimit(t.Context(), request); err != nil {
		t.Fatalf("fill %s: %v", request.Count(0), err)
	}
}

// Value fails the test unless the request's limit and key have that many tokens, give or take a
// millionth of a token or of the number. A negative number is a debt. The count of the request does
// not matter.
func Value(t testing.TB, v Verbs, request ratelimit.Request, want float64) {
	t.Helper()
	s := state(t, v, request)
	if math.Abs(s.Value-want) <= 1e-6*max(1, math.Abs(want)) {
		return
	}
	paused := ""
	if !s.PausedUntil.IsZero() {
		paused = ", paused until " + stamp(s.PausedUntil)
	}
	limit := cmp.Or(request.Limit().Name(), "the zero Limit")
	t.Errorf("%s has %v tokens at %s%s; want %v", name(limit, request.Key()), s.Value, stamp(s.TS),
		paused, want)
}

func state(t testing.TB, v Verbs, request ratelimit.Request) ratelimit.State {
	t.Helper()
	s, err := v.Value(t.Context(), request)
	if err != nil {
		t.Fatalf("look at %s: %v", request.Count(0), err)
	}
	return s
}
