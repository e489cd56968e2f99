package weirtest_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

var (
	bucket = ratelimit.MustDefine("bucket",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, MaxReserved: ratelimit.Tokens(10)})
	other = ratelimit.MustDefine("other", ratelimit.FixedWindow{Rate: 3, Period: time.Hour})
)

func TestTheClockStandsUntilItIsSet(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	c := new(weirtest.Clock)
	for range 2 {
		if !c.Now().Equal(noon) {
			t.Error(c.Now())
		}
	}
	c.Add(time.Hour)
	c.Add(-time.Microsecond)
	if want := noon.Add(time.Hour - time.Microsecond); !c.Now().Equal(want) {
		t.Errorf("%v, want %v", c.Now(), want)
	}
	at := time.Date(1999, 12, 31, 23, 59, 59, 1999, time.FixedZone("", 3600))
	if c := weirtest.NewClock(at); !c.Now().Equal(at.Truncate(time.Microsecond)) || c.Now().Location() != time.UTC {
		t.Errorf("%v, want %v in UTC", c.Now(), at)
	}
}

// Consume refuses what may be granted for later, as all verbs of that name do.
func TestConsumeRefusesReservations(t *testing.T) {
	t.Parallel()
	l := new(weirtest.Limiter)
	err := l.Consume(t.Context(), bucket.For("k").OrReserve())
	if !errors.Is(err, ratelimit.ErrInvalid) || len(l.Calls()) > 0 {
		t.Errorf("%v after %v: want a refusal, and no call", err, l.Calls())
	}
}

func TestDenyAndFailOnDemand(t *testing.T) {
	t.Parallel()
	clock := new(weirtest.Clock)
	l := &weirtest.Limiter{Clock: clock}
	ctx := t.Context()
	both := []ratelimit.Request{other.For("k"), bucket.For("k").Count(4)}

	l.Deny(bucket, time.Minute)
	res, err := l.RateLimit(ctx, both...)
	weirtest.Denied(t, res, err, bucket)
	if res.RetryAfter() != time.Minute || res.Key != "k" || !res.Outcomes[0].OK ||
		res.Outcomes[1].OK || res.Outcomes[0].Value != 3 || res.Outcomes[1].Value != 10 {
		t.Errorf("%+v, want nothing taken, for a minute", res)
	}
	if err := l.GiveBack(ctx, res); err != nil {
		t.Error(err)
	}
	res, err = l.RateLimit(ctx, bucket.For("another").OrReserve())
	weirtest.Denied(t, res, err, bucket)
	if _, err := l.Wait(ctx, bucket.For("k")); !errors.Is(err, ratelimit.ErrDenied) {
		t.Error(err)
	}
	clock.Add(time.Minute)
	res, err = l.RateLimit(ctx, both...)
	weirtest.Granted(t, res, err)
	weirtest.Value(t, l, bucket.For("k"), 6)

	// which comes later binds
	l.Deny(bucket, time.Millisecond)
	res, err = l.RateLimit(ctx, bucket.For("k").Count(7))
	weirtest.Denied(t, res, err, bucket)
	if res.RetryAfter() != 100*time.Millisecond {
		t.Errorf("%v, want until its tokens come", res.RetryAfter())
	}
	l.Deny(bucket, 0)
	res, err = l.RateLimit(ctx, bucket.For("k"))
	weirtest.Granted(t, res, err)

	away := errors.New("away")
	l.Fail(away)
	for _, err := range []error{
		second(l.RateLimit(ctx, bucket.For("k"))), second(l.CheckRateLimit(ctx, bucket.For("k"))),
		second(l.Wait(ctx, bucket.For("k"))),
		second(l.Value(ctx, bucket.For("k"))), l.ResetRateLimit(ctx, bucket.For("k")), l.GiveBack(ctx, res),
		l.Pause(ctx, time.Second, bucket.For("k")), l.Resume(ctx, bucket.For("k")),
	} {
		if !errors.Is(err, away) {
			t.Errorf("%v, want what Fail was given", err)
		}
	}
	if _, err := l.RateLimit(ctx, bucket.For("")); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid first", err)
	}
	denied := ratelimit.Result{At: clock.Now(), RetryAt: clock.Now().Add(time.Second)}
	if err := l.GiveBack(ctx, denied); err != nil {
		t.Errorf("%v, want that nothing is given back, without a database", err)
	}
	l.Fail(nil)
	weirtest.Value(t, l, bucket.For("k"), 5)
	l.Set(bucket.For("k"), -3)
	weirtest.Value(t, l, bucket.For("k"), -3)
	l.Set(bucket.For("k"), 99)
	weirtest.Value(t, l, bucket.For("k"), 10)

	var verbs []string
	for _, c := range l.Calls()[:4] {
		verbs = append(verbs, c.Verb)
	}
	calls := l.Calls()
	if verbs[0] != "RateLimit" || verbs[1] != "GiveBack" || verbs[3] != "Wait" ||
		calls[0].Requests[1] != both[1] || calls[0].Result.OK || calls[0].Err != nil {
		t.Errorf("%q, %+v", verbs, calls[0])
	}
}

func second[T any](_ T, err error) error { return err }

// A shadow denies nobody, also on demand, and takes nothing then; nor is it asked where a limit
// denies.
func TestAShadowThatIsDeniedOnDemandDeniesNobody(t *testing.T) {
	t.Parallel()
	shadow := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 5, Period: time.Second}, ratelimit.Shadow())
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	both := []ratelimit.Request{bucket.For("k"), shadow.For("k").Count(2)}
	l.Deny(shadow, time.Minute)
	res, err := l.RateLimit(t.Context(), both...)
	weirtest.Granted(t, res, err)
	if o := res.Outcomes[1]; o.OK || !o.Shadow || o.Value != 5 || o.RetryAt.Sub(res.At) != time.Minute {
		t.Errorf("%+v", o)
	}
	weirtest.Value(t, l, bucket.For("k"), 9)
	weirtest.Value(t, l, shadow.For("k"), 5)
}

func TestWaitReturnsWhenTheClockHasComeToIt(t *testing.T) {
	t.Parallel()
	clock := new(weirtest.Clock)
	l := &weirtest.Limiter{Clock: clock}
	weirtest.Drain(t, l, bucket.For("k"))
	var done atomic.Bool
	waited := make(chan error)
	go func() {
		_, err := l.Wait(t.Context(), bucket.For("k").Count(5))
		done.Store(true)
		waited <- err
	}()
	for len(l.Calls()) < 3 { // until it has its place
		time.Sleep(time.Millisecond)
	}
	clock.Add(500*time.Millisecond - time.Microsecond)
	if done.Load() {
		t.Error("too early")
	}
	clock.Add(time.Microsecond)
	if err := <-waited; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := l.Wait(ctx, bucket.For("k").Count(5)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	weirtest.Value(t, l, bucket.For("k"), 0) // what it took was given back
}

func TestTheZeroLimiterRunsOutInRealTimeForAllWhoShareIt(t *testing.T) {
	t.Parallel()
	var l weirtest.Limiter
	three := ratelimit.MustDefine("three", ratelimit.TokenBucket{Rate: 3, Period: 1000 * time.Hour})
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if res, err := l.RateLimit(t.Context(), three.For("k")); err == nil && res.OK {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 3 {
		t.Errorf("%d were granted of 3", granted.Load())
	}
	if res, err := l.CheckRateLimit(t.Context(), bucket.For("k")); err != nil || !res.OK ||
		l.GiveBack(t.Context(), res) == nil {
		t.Error("a check was given back", err)
	}
	if err := l.GiveBack(t.Context(), ratelimit.Result{}); !errors.Is(err, ratelimit.ErrNoDecision) {
		t.Error(err)
	}
}

func TestWhatIsGivenBackOfAnEarlierWindowIsNoGift(t *testing.T) {
	t.Parallel()
	clock := new(weirtest.Clock)
	l := &weirtest.Limiter{Clock: clock}
	take := func(n float64) ratelimit.Result {
		res, err := l.RateLimit(t.Context(), other.For("k").Count(n))
		weirtest.Granted(t, res, err)
		return res
	}
	early, now := take(2), take(1)
	clock.Set(now.Outcomes[0].WindowEnds)
	late := take(2)
	for _, step := range []struct {
		res  ratelimit.Result
		want float64
	}{{early, 1}, {late, 3}, {late, 3}} {
		if err := l.GiveBack(t.Context(), step.res); err != nil {
			t.Fatal(err)
		}
		weirtest.Value(t, l, other.For("k"), step.want)
	}
}

// What Do charges beyond the estimate is taken of what is there then, and is not forgotten once the
// limit would have been full.
func TestDoChargesAtTheTimeOfTheClock(t *testing.T) {
	t.Parallel()
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	if err := l.Do(t.Context(), func(_ context.Context, used func(...ratelimit.Request)) error {
		l.Clock.Add(time.Minute) // full again
		used(bucket.For("k").Count(12))
		return nil
	}, bucket.For("k").Count(5)); err != nil {
		t.Fatal(err)
	}
	weirtest.Value(t, l, bucket.For("k"), 3)
}

// Of a call that was granted ahead of two windows, the first had repaid 10: of the 5 of the second,
// those that were used are not given back.
func TestDoGivesBackOfAWindowWhatWasNotUsed(t *testing.T) {
	t.Parallel()
	windows := ratelimit.MustDefine("doInWindows",
		ratelimit.FixedWindow{Rate: 10, Period: time.Minute, Start: time.Unix(0, 0)})
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	weirtest.Drain(t, l, windows.For("k"))
	ready, done := make(chan struct{}), make(chan error)
	go func() {
		done <- l.Do(t.Context(), func(_ context.Context, used func(...ratelimit.Request)) error {
			close(ready)
			used(windows.For("k").Count(3))
			return nil
		}, windows.For("k").Count(15))
	}()
	for len(l.Calls()) == 0 || l.Calls()[len(l.Calls())-1].Verb != "Wait" { // it has reserved, and waits
		runtime.Gosched()
	}
	l.Clock.Add(2*time.Minute + 50*time.Second)
	<-ready
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	weirtest.Value(t, l, windows.For("k"), 7)
}
