package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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

var (
	errGone = errors.New("connection refused")
	quiet   = slog.New(slog.DiscardHandler)
	ample   = ratelimit.MustDefine("ample", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second})
)

func TestFailOpenIsOpenForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &down{err: errGone}
		var log bytes.Buffer
		f := &ratelimit.FailOpen{Limiter: d, For: 50 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(&log, nil))}
		through := func() bool {
			t.Helper()
			res, err := f.RateLimit(t.Context(), ample.For("k"))
			if err != nil && (!errors.Is(err, errGone) || res.OK) {
				t.Fatalf("%+v, %v", res, err)
			}
			if back := new(ratelimit.Autocommit).GiveBack(t.Context(), res); res.OK &&
				(err != nil || res.Decided() || res.Err() != nil || back != nil) {
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
		if res, err := f.RateLimit(t.Context(), ample.For("k")); err != nil || !res.Decided() {
			t.Errorf("after the outage: %+v, %v", res, err)
		}
		time.Sleep(50 * time.Millisecond)
		if res, err := f.RateLimit(t.Context(), ample.For("k")); err != nil || !res.Decided() {
			t.Errorf("some time after the outage: %+v, %v", res, err)
		}
		d.err = errGone
		if !through() {
			t.Error("the next outage is not open")
		}
		for _, want := range []string{"are let through", "no longer let through", "decides again"} {
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
	f := &ratelimit.FailOpen{Limiter: &down{err: errGone}, Most: 7, Logger: quiet}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { _, _ = f.RateLimit(t.Context(), ample.For("k")) })
	}
	wg.Wait()
	if f.Opened() != 7 {
		t.Errorf("%d were let through, want 7", f.Opened())
	}
}

// A database that comes and goes renews neither For nor Most. Only one that was well for as long as
// For does, without an outage in between.
func TestADatabaseThatComesAndGoesDoesNotRenewWhatIsLetThrough(t *testing.T) {
	t.Parallel()
	const most, open = 10, time.Second
	for _, share := range []float64{-1, 1} {
		synctest.Test(t, func(t *testing.T) {
			d := &down{}
			f := &ratelimit.FailOpen{Limiter: d, For: open, Most: most, Share: share, Logger: quiet}
			call := func(err error) bool {
				d.err = err
				res, err := f.RateLimit(t.Context(), ample.For("k"))
				return err == nil && !res.Decided()
			}
			for range 500 { // 10 s, of which no second is without a failure
				call(errGone)
				time.Sleep(10 * time.Millisecond)
				call(nil)
				time.Sleep(10 * time.Millisecond)
			}
			if f.Opened() != most {
				t.Errorf("%d were let through, want %d", f.Opened(), most)
			}
			time.Sleep(time.Hour) // in which nothing shows that the database is well
			if call(errGone) {
				t.Error("silence has renewed it")
			}
			call(nil)
			time.Sleep(open - time.Millisecond)
			if call(nil); call(errGone) {
				t.Error("renewed before its time")
			}
			call(nil)
			time.Sleep(open)
			call(nil)
			for range 2 * most {
				call(errGone)
			}
			if f.Opened() != 2*most {
				t.Errorf("%d were let through in two outages, want %d", f.Opened(), 2*most)
			}
		})
	}
}

// A call that fails, or waits, while others are decided is not let through.
func TestACallThatFailsAloneIsNotLetThrough(t *testing.T) {
	t.Parallel()
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprint("slow ", slow), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limits := limiterFunc(func(ctx context.Context, r ...ratelimit.Request) (ratelimit.Result, error) {
					if r[0].Key() != "other" && slow {
						<-ctx.Done()
						return ratelimit.Result{}, ctx.Err()
					}
					time.Sleep(30 * time.Millisecond)
					if r[0].Key() != "other" {
						return ratelimit.Result{}, errGone
					}
					return ratelimit.Result{OK: true, At: time.Now()}, nil
				})
				f := &ratelimit.FailOpen{Limiter: limits, Timeout: 20 * time.Millisecond, Logger: quiet}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for i := range 4 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 5 * time.Millisecond)
						for ctx.Err() == nil {
							if _, err := f.RateLimit(ctx, ample.For("other")); err != nil {
								if ctx.Err() == nil {
									t.Error(err)
								}
							}
						}
					})
				}
				time.Sleep(50 * time.Millisecond)
				if slow {
					if _, err := f.RateLimit(ctx, ample.For("k")); !errors.Is(err,
						context.DeadlineExceeded) || ctx.Err() == nil {
						t.Error(err)
					}
				}
				for !slow && ctx.Err() == nil {
					if _, err := f.RateLimit(t.Context(), ample.For("k")); !errors.Is(err,
						errGone) && ctx.Err() == nil {
						t.Fatal(err)
					}
				}
				wg.Wait()
				if f.Opened() > 0 {
					t.Errorf("%d were let through", f.Opened())
				}
			})
		})
	}
}

type limiterFunc func(ctx context.Context, r ...ratelimit.Request) (ratelimit.Result, error)

func (f limiterFunc) RateLimit(ctx context.Context, r ...ratelimit.Request) (ratelimit.Result, error) {
	return f(ctx, r...)
}

// In an outage n processes with an n-th of the limit each grant what the limit allows, and no more.
func TestSharesOfALimitAreKeptInAnOutage(t *testing.T) {
	t.Parallel()
	const minutes = 5
	for name, c := range map[string]struct {
		rule ratelimit.Rule
		most float64 // in all
	}{
		"Bucket": {ratelimit.TokenBucket{Rate: 120, Period: time.Minute, Capacity: ratelimit.Tokens(40)}, 40 + minutes*120},
		"Window": {ratelimit.FixedWindow{Rate: 120, Period: time.Minute}, (minutes + 1) * 120},
	} {
		for _, n := range []int{1, 4} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					limit := ratelimit.MustDefine("shared", c.rule)
					processes := make([]*ratelimit.FailOpen, n)
					for i := range processes {
						processes[i] = &ratelimit.FailOpen{Limiter: &down{err: errGone},
							For: time.Hour, Share: 1 / float64(n), Logger: quiet}
					}
					granted := map[string]float64{}
					for began := time.Now(); time.Since(began) < minutes*time.Minute; time.Sleep(
						250 * time.Millisecond,
					) {
						for _, f := range processes {
							for _, key := range []string{"a", "b"} {
								res, err := f.RateLimit(t.Context(), limit.For(key), ample.For(key))
								switch {
								case err != nil || res.Decided():
									t.Fatalf("%+v, %v", res, err)
								case res.OK:
									granted[key]++
								case !errors.Is(res.Err(), ratelimit.ErrDenied) || res.RetryAfter() <= 0 ||
									res.Limit != "shared" || res.Key != key:
									t.Fatalf("%+v", res)
								}
							}
						}
					}
					for key, got := range granted {
						if got > c.most || got < c.most-121 {
							t.Errorf("key %s: %v granted in %d minutes, want %v", key, got, minutes, c.most)
						}
					}
				})
			})
		}
	}
}

// asking is a log handler that itself calls what it logs for.
type asking struct {
	slog.Handler
	ask func()
}

func (h *asking) Enabled(context.Context, slog.Level) bool { return true }

func (h *asking) Handle(context.Context, slog.Record) error {
	h.ask()
	return nil
}

// Who writes the logs may do so through the same FailOpen.
func TestALogHandlerMayCallTheFailOpen(t *testing.T) {
	t.Parallel()
	gone, asked := &down{err: errGone}, 0
	f := &ratelimit.FailOpen{Limiter: gone, Most: 3}
	h := &asking{Handler: quiet.Handler()}
	h.ask = func() {
		if asked++; asked < 10 {
			_, _ = f.RateLimit(t.Context(), ample.For("logs"))
		}
	}
	f.Logger = slog.New(h)
	for range 5 {
		_, _ = f.RateLimit(t.Context(), ample.For("k"))
	}
	if asked < 2 {
		t.Errorf("logged %d times", asked)
	}
}

// A share that is a whole token grants one, also if 49 times 1/49 is less than 1.
func TestAShareOfOneTokenIsOne(t *testing.T) {
	t.Parallel()
	for n := 2; n < 200; n++ {
		f := &ratelimit.FailOpen{Limiter: &down{err: errGone}, Share: 1 / float64(n), Logger: quiet}
		limit := ratelimit.MustDefine(fmt.Sprint("share of ", n), ratelimit.FixedWindow{Rate: float64(n), Period: time.Hour})
		for _, want := range []bool{true, false} {
			if res, err := f.RateLimit(t.Context(), limit.Global()); err != nil || res.OK != want {
				t.Errorf("1/%d of %d: %+v, %v, want granted %v", n, n, res, err, want)
			}
		}
	}
}

// Who comes at the RetryAt that it was told in an outage is let through, and not before.
func TestDenialsInAnOutageTellWhenTheyEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.MustDefine("exact", ratelimit.TokenBucket{Rate: 7, Period: time.Minute})
		f := &ratelimit.FailOpen{Limiter: &down{err: errGone}, Share: 0.5, For: time.Hour, Logger: quiet}
		denied := 0
		for range 50 {
			res, err := f.RateLimit(t.Context(), limit.For("k").OrReserve())
			if err != nil || !res.RunAt.IsZero() {
				t.Fatalf("%+v, %v", res, err)
			}
			if res.OK {
				continue
			}
			denied++
			time.Sleep(res.RetryAfter() - time.Microsecond)
			if res, err := f.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK {
				t.Fatalf("before RetryAt: %+v, %v", res, err)
			}
			time.Sleep(time.Microsecond)
			if res, err := f.RateLimit(t.Context(), limit.For("k")); err != nil || !res.OK {
				t.Fatalf("at RetryAt: %+v, %v", res, err)
			}
		}
		if denied < 40 {
			t.Errorf("%d were denied", denied)
		}
		_, err := f.RateLimit(t.Context(), limit.For("other").Count(4))
		if !errors.Is(err, errGone) || !strings.Contains(err.Error(), "share") {
			t.Errorf("more than the share ever holds: %v", err)
		}
	})
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
		"Share":      {&ratelimit.FailOpen{Limiter: &down{err: errGone}, Share: 1.5}, t.Context(), false},
		"NoShare":    {&ratelimit.FailOpen{Limiter: &down{err: errGone}, Share: math.NaN()}, t.Context(), false},
		"NotAllowed": {&ratelimit.FailOpen{Limiter: &down{err: errGone}, Allow: never}, t.Context(), false},
		"Hangs":      {&ratelimit.FailOpen{Limiter: &down{hangs: true}, Timeout: time.Millisecond}, t.Context(), true},
		"Overloaded": {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrOverloaded}}, t.Context(), true},
		"Unknown":    {&ratelimit.FailOpen{Limiter: &down{err: ratelimit.ErrOutcomeUnknown}}, t.Context(), true},
	} {
		c.f.Logger = quiet
		if res, err := c.f.RateLimit(c.ctx, ample.For("k")); res.OK != c.open || (err == nil) != c.open {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
}
