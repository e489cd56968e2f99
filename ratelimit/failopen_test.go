package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// down is a limiter that answers with err, or hangs.
type down struct {
	err   error
	hangs bool
}

func (d *down) RateLimit(ctx context.Context, _ ...ratelimit.Request) (ratelimit.Result, error) {
	if d.hangs {
		<-ctx.Done()
		return ratelimit.Result{}, ctx.Err()
	}
	if d.err != nil {
		return ratelimit.Result{}, d.err
	}
	return ratelimit.Result{OK: true, At: time.Now()}, nil
}

func TestFailOpenIsOpenForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		d := &down{err: away}
		var log bytes.Buffer
		f := &ratelimit.FailOpen{Limiter: d, For: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		through := func() bool {
			t.Helper()
			res, err := f.RateLimit(t.Context())
			if err != nil && (!errors.Is(err, away) || res.OK) {
				t.Fatalf("%+v, %v", res, err)
			}
			if back := new(ratelimit.Autocommit).GiveBack(t.Context(), res); res.OK && (err != nil || res.Decided() || res.Err() != nil || back != nil) {
				t.Fatalf("%+v, %v", res, err)
			}
			return res.OK
		}
		for n := range int64(2) {
			if !through() || f.Opened() != n+1 {
				t.Fatalf("an outage that has just begun: %d let through", f.Opened())
			}
		}
		time.Sleep(50*time.Millisecond - 1)
		if !through() {
			t.Fatal("it is not open for as long as it should be")
		}
		time.Sleep(2 * time.Nanosecond)
		if through() {
			t.Error("open again in the same outage")
		}
		d.err = nil
		if res, err := f.RateLimit(t.Context()); err != nil || !res.Decided() {
			t.Errorf("after the outage: %+v, %v", res, err)
		}
		d.err = away
		if !through() {
			t.Error("the next outage is not open")
		}
		for _, want := range []string{"let through, as their limits", "no longer let through", "asked again"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, &log)
			}
		}
		if n := strings.Count(log.String(), "no longer"); n != 1 {
			t.Errorf("told %d times that it is closed", n)
		}
	})
}

func TestFailOpenIsOpenForSoMany(t *testing.T) {
	t.Parallel()
	f := &ratelimit.FailOpen{Limiter: &down{err: errors.New("away")}, Most: 7, Logger: slog.New(slog.DiscardHandler)}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { _, _ = f.RateLimit(t.Context()) })
	}
	wg.Wait()
	if f.Opened() != 7 {
		t.Errorf("%d were let through, want 7", f.Opened())
	}
}

func TestFailOpenLetsNothingThroughThatIsWrongByItself(t *testing.T) {
	t.Parallel()
	never := func(context.Context, error, []ratelimit.Request) bool { return false }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		f    *ratelimit.FailOpen
		ctx  context.Context
		open bool
	}{
		"Invalid":    {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrInvalid}}, t.Context(), false},
		"Nested":     {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrNested}}, t.Context(), false},
		"Closed":     {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrClosed}}, t.Context(), false},
		"Ended":      {&ratelimit.FailOpen{Limiter: &down{hangs: true}}, ended, false},
		"NoLimiter":  {&ratelimit.FailOpen{}, t.Context(), false},
		"NotAllowed": {&ratelimit.FailOpen{Limiter: &down{err: errors.New("away")}, Allow: never}, t.Context(), false},
		"Hangs":      {&ratelimit.FailOpen{Limiter: &down{hangs: true}, Timeout: time.Millisecond}, t.Context(), true},
		"Overloaded": {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrOverloaded}}, t.Context(), true},
		"Unknown":    {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrOutcomeUnknown}}, t.Context(), true},
	} {
		c.f.Logger = slog.New(slog.DiscardHandler)
		if res, err := c.f.RateLimit(c.ctx); res.OK != c.open || (err == nil) != c.open {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
}
