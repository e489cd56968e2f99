package weirtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

func reserve(t testing.TB, l *weirtest.Limiter, requests ...ratelimit.Request) ratelimit.Reservation {
	t.Helper()
	res, err := l.RateLimit(t.Context(), requests...)
	if err != nil || !res.OK {
		t.Fatal(weirtest.Describe(res, err))
	}
	return throughJSON(t, res.Reservation())
}

func throughJSON(t testing.TB, r ratelimit.Reservation) (read ratelimit.Reservation) {
	t.Helper()
	text, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestAReservationIsSettledOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, c := range map[string]struct {
		do         func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error)
		left, more float64 // of bucket, which had 10, and of other, which had 3
	}{
		"less": {func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, r, bucket.For("k").Count(1))
		}, 9, 1},
		"in two": {func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, r, bucket.For("k").Count(1), bucket.For("k").Count(1.5))
		}, 7.5, 1},
		"nothing named": {func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, r)
		}, 6, 1},
		"as reserved": {func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, r, bucket.For("k").Count(4), other.For("k").Count(2))
		}, 6, 1},
		"more than there is": {func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, r, bucket.For("k").Count(34), other.For("k").Count(0))
		}, -24, 3},
		"release": {func(l *weirtest.Limiter, r ratelimit.Reservation) (bool, error) {
			return l.Release(ctx, r)
		}, 10, 3},
	} {
		l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
		r := reserve(t, l, bucket.For("k").Count(4), other.For("k").Count(2))
		if settled, err := c.do(l, r); err != nil || !settled {
			t.Errorf("%s: %v, %v", name, settled, err)
		}
		call := l.Calls()[1]
		if !call.Settled || call.Reservation.ID != r.ID || len(call.Reservation.Takes) != 2 ||
			call.Verb != "Settle" && call.Verb != "Release" {
			t.Errorf("%s: noted as %+v", name, call)
		}
		for range 2 {
			weirtest.Value(t, l, bucket.For("k"), c.left)
			weirtest.Value(t, l, other.For("k"), c.more)
			settled, err := l.Settle(ctx, r, bucket.For("k").Count(0))
			released, err2 := l.Release(ctx, r)
			if settled || released || err != nil || err2 != nil {
				t.Errorf("%s: settled again: %v %v, %v %v", name, settled, released, err, err2)
			}
		}
	}
}

// Of those who settle at once one does.
func TestOneOfManySettles(t *testing.T) {
	t.Parallel()
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	r := reserve(t, l, bucket.For("k").Count(4))
	var settled atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if ok, err := l.Settle(t.Context(), r, bucket.For("k").Count(3)); err == nil && ok {
				settled.Add(1)
			}
			if err := l.ResetKey(t.Context(), "another"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if settled.Load() != 1 {
		t.Errorf("%d have settled", settled.Load())
	}
	weirtest.Value(t, l, bucket.For("k"), 7)
}

// What is settled moves the work that waits, and what is released does not.
func TestWorkThatWaitsMovesAsInPostgres(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		do    func(l *weirtest.Limiter, first, second ratelimit.Reservation) (bool, error)
		third time.Duration // when the work of the third may run
		next  time.Duration // when that of the next caller may
	}{
		"nothing": {func(*weirtest.Limiter, ratelimit.Reservation, ratelimit.Reservation) (bool, error) {
			return true, nil
		}, 500 * ms, 600 * ms},
		"settle": {func(l *weirtest.Limiter, _, second ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, second, bucket.For("k").Count(1))
		}, 300 * ms, 400 * ms},
		"charge": {func(l *weirtest.Limiter, _, second ratelimit.Reservation) (bool, error) {
			return l.Settle(ctx, second, bucket.For("k").Count(5))
		}, 700 * ms, 800 * ms},
		"release": {func(l *weirtest.Limiter, _, second ratelimit.Reservation) (bool, error) {
			return l.Release(ctx, second)
		}, 500 * ms, 300 * ms},
		"release of one that did not wait": {
			func(l *weirtest.Limiter, first, _ ratelimit.Reservation) (bool, error) {
				return l.Release(ctx, first)
			}, 0, 0,
		},
	} {
		l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
		now := l.Clock.Now()
		first := reserve(t, l, bucket.For("k").Count(10))
		second := reserve(t, l, bucket.For("k").Count(3).OrReserve())
		third := reserve(t, l, bucket.For("k").Count(2).OrReserve())
		if ok, err := c.do(l, first, second); err != nil || !ok {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
		s, err := l.Value(ctx, bucket.For("k"))
		if err != nil {
			t.Fatal(err)
		}
		if at, _ := third.Takes[0].RunAt(s); max(0, at.Sub(now)) != c.third {
			t.Errorf("%s: the third may run in %v, want %v", name, at.Sub(now), c.third)
		}
		res, err := l.CheckRateLimit(ctx, bucket.For("k").OrReserve())
		if in := res.RunAt.Sub(now); err != nil || !res.OK || max(0, in) != c.next {
			t.Errorf("%s: the next may run in %v, want %v", name, in, c.next)
		}
	}
}

// A settlement that is refused, or fails, has not settled.
func TestABadSettlementChangesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	shadow := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 5, Period: time.Second}, ratelimit.Shadow())
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	r := reserve(t, l, bucket.For("k").Count(4), shadow.For("k").Count(2))
	if len(r.Takes) != 1 {
		t.Errorf("%+v, want no shadow", r)
	}
	away := errors.New("away")
	l.Fail(away)
	for what, err := range map[string]error{
		"another key":     second(l.Settle(ctx, r, bucket.For("another"))),
		"another limit":   second(l.Settle(ctx, r, other.For("k"))),
		"less than 0":     second(l.Settle(ctx, r, bucket.For("k").Count(-1))),
		"too many":        second(l.Settle(ctx, r, bucket.For("k").Count(1<<53), bucket.For("k").Count(2))),
		"the zero Limit":  second(l.Settle(ctx, r, ratelimit.Request{})),
		"the zero one":    second(l.Settle(ctx, ratelimit.Reservation{})),
		"no takes":        second(l.Release(ctx, ratelimit.Reservation{ID: r.ID})),
		"no id":           second(l.Release(ctx, ratelimit.Reservation{Takes: r.Takes})),
		"no key":          l.ResetKey(ctx, ""),
		"a long key":      l.ResetKey(ctx, strings.Repeat("k", 2000)),
		"a key with NUL":  l.ResetKey(ctx, "k\x00"),
		"a reserved key":  l.ResetKey(ctx, "\x01weir k"),
		"a key of no use": l.ResetKey(ctx, "\xff"),
	} {
		if !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	for _, err := range []error{second(l.Settle(ctx, r)), second(l.Release(ctx, r)), l.ResetKey(ctx, "k")} {
		if !errors.Is(err, away) {
			t.Errorf("%v, want what Fail was given", err)
		}
	}
	l.Fail(nil)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range []error{second(l.Settle(ended, r)), second(l.Release(ended, r)), l.ResetKey(ended, "k")} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that of the context", err)
		}
	}
	weirtest.Value(t, l, bucket.For("k"), 6)
	if ok, err := l.Settle(ctx, r, bucket.For("k").Count(1), shadow.For("k").Count(9)); !ok || err != nil {
		t.Error(ok, err)
	}
	weirtest.Value(t, l, bucket.For("k"), 9)
	weirtest.Value(t, l, shadow.For("k"), 3)
}

// As with a database, a reservation need not have been made here, and is settled within its time.
func TestAReservationOfAnotherLimiterIsSettled(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	short := ratelimit.MustDefine("short", ratelimit.TokenBucket{Rate: 10, Period: time.Hour},
		ratelimit.SettleWithin(time.Minute))
	clock := new(weirtest.Clock)
	one, two := &weirtest.Limiter{Clock: clock}, &weirtest.Limiter{Clock: clock}
	weirtest.Drain(t, two, short.For("k"))
	r := reserve(t, one, short.For("k").Count(4))
	late := r.Again()
	clock.Add(time.Minute - time.Microsecond)
	if ok, err := two.Settle(ctx, r, short.For("k").Count(1)); err != nil || !ok {
		t.Error(ok, err)
	}
	weirtest.Value(t, two, short.For("k"), 3+1./6)
	clock.Add(time.Microsecond)
	if ok, err := two.Settle(ctx, late); err != nil || ok {
		t.Errorf("settled after its time: %v, %v", ok, err)
	}
	unused := reserve(t, one, other.For("of nobody").Count(2))
	if ok, err := two.Settle(ctx, unused, other.For("of nobody").Count(3)); err != nil || !ok {
		t.Error(ok, err)
	}
	weirtest.Value(t, two, other.For("of nobody"), 2) // it was full, and one more was used
}

// Whatever a reservation says, the Limiter answers, and goes on.
func TestNoReservationPanics(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		l := &weirtest.Limiter{Clock: weirtest.NewClock(time.Unix(rapid.SampledFrom([]int64{
			0, 1, 1767268800, 4e9,
		}).Draw(rt, "now"), 0))}
		number := rapid.SampledFrom([]float64{0, 1, -1, 0.5, 3, 1e9, 1 << 53, -1e300, 1e300})
		whole := rapid.SampledFrom([]int64{0, 1, -1, 1e6, 1767268800e6, -2e17, 2e17})
		var r ratelimit.Reservation
		if rapid.Bool().Draw(rt, "has an id") {
			r.ID = uuid.New()
		}
		for range rapid.IntRange(0, 3).Draw(rt, "takes") {
			limit, count := rapid.SampledFrom([]string{"bucket", "other", "none"}).Draw(rt, "limit"),
				number.Draw(rt, "count")
			take := ratelimit.Take{Limit: limit, Key: "k", Count: count}
			text := fmt.Sprintf(`[%q,"k",%v,%d,%d,%v,%v,%d,%v,%d,%v`, limit, count,
				rapid.SampledFrom([]int{0, 0, 3, -1}).Draw(rt, "row"), whole.Draw(rt, "since"),
				number.Draw(rt, "owed"), number.Draw(rt, "moved"), whole.Draw(rt, "delay"),
				number.Draw(rt, "rate"), whole.Draw(rt, "period"), number.Draw(rt, "capacity"))
			if rapid.Bool().Draw(rt, "windowed") {
				text += fmt.Sprint(",", whole.Draw(rt, "origin"))
			}
			_ = json.Unmarshal([]byte(text+"]"), &take) // or as it is, if that is refused
			r.Takes = append(r.Takes, take)
		}
		all := []ratelimit.Request{bucket.For("k"), other.For("k")}
		for range 2 {
			for i := range all {
				all[i] = all[i].Count(number.Draw(rt, "used"))
			}
			_, _ = l.Settle(t.Context(), r, all[:rapid.IntRange(0, 2).Draw(rt, "n")]...)
			_, _ = l.Release(t.Context(), r)
			r.ID = uuid.New()
			_, _ = l.RateLimit(t.Context(), bucket.For("k").OrReserve(), other.For("k"))
			_ = l.Pause(t.Context(), time.Second, all...)
			l.Clock.Add(time.Second)
		}
		if err := l.ResetKey(t.Context(), "k"); err != nil {
			rt.Fatal(err)
		}
		l.Clock.Add(time.Minute) // a pause goes on
		for _, request := range all {
			res, err := l.RateLimit(t.Context(), request.Count(1))
			if err != nil || !res.OK {
				rt.Fatalf("after a reset: %s", weirtest.Describe(res, err))
			}
		}
	})
}

func TestResetKeyFillsAllBalancesOfAKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	shadow := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 5, Period: time.Second}, ratelimit.Shadow())
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	all := []ratelimit.Request{bucket.For("k").Count(4), other.For("k").Count(2), shadow.For("k").Count(3)}
	reserve(t, l, all...)
	ahead := reserve(t, l, bucket.For("k").Count(9).OrReserve())
	reserve(t, l, bucket.For("kk").Count(4), bucket.Global().Count(3))
	if err := l.Pause(ctx, time.Minute, other.For("k")); err != nil {
		t.Fatal(err)
	}
	if err := l.ResetKey(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	for request, want := range map[ratelimit.Request]float64{all[0]: 10, all[1]: 3, all[2]: 5,
		bucket.For("kk"): 6, bucket.Global(): 7, other.For("of nobody"): 3} {
		weirtest.Value(t, l, request, want)
	}
	s, err := l.Value(ctx, other.For("k"))
	if err != nil || !s.PausedUntil.Equal(l.Clock.Now().Add(time.Minute)) {
		t.Errorf("%+v, %v; want it still paused", s, err)
	}
	if ok, err := l.Settle(ctx, ahead, bucket.For("k").Count(11)); err != nil || !ok {
		t.Error(ok, err)
	}
	weirtest.Value(t, l, bucket.For("k"), 8)
	if err := l.ResetKey(ctx, "of nobody"); err != nil {
		t.Error(err)
	}
	calls := l.Calls()
	if c := calls[len(calls)-1]; c.Verb != "ResetKey" || c.Key != "of nobody" || c.Err != nil {
		t.Errorf("%+v", c)
	}
}

// A check says what a take would say, but has nothing to settle or give back.
func TestACheckHasNoReservation(t *testing.T) {
	t.Parallel()
	shadow := ratelimit.MustDefine("other", ratelimit.FixedWindow{Rate: 5, Period: time.Hour}, ratelimit.Shadow())
	l := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	if err := l.Pause(t.Context(), time.Millisecond, bucket.For("k")); err != nil {
		t.Fatal(err)
	}
	requests := []ratelimit.Request{other.For("k"), bucket.For("k").Count(13).OrReserve(), shadow.For("k")}
	seen, err := l.CheckRateLimit(t.Context(), requests...)
	if err != nil || !seen.OK {
		t.Fatal(weirtest.Describe(seen, err))
	}
	if r := seen.Reservation(); r.ID != uuid.Nil || len(r.Takes) != 0 {
		t.Errorf("a check has the reservation %+v", r)
	}
	if _, err := l.Settle(t.Context(), seen.Reservation()); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Error(err)
	}
	res, err := l.RateLimit(t.Context(), requests...)
	if err != nil || len(res.Reservation().Takes) != 2 {
		t.Fatal(weirtest.Describe(res, err))
	}
	shown(t, "Result", seen, res)
	if len(seen.Outcomes) != 3 {
		t.Fatal(seen)
	}
	for i := range seen.Outcomes {
		shown(t, "Outcome", seen.Outcomes[i], res.Outcomes[i])
	}
}

// shown compares the fields that users see.
func shown(t *testing.T, what string, a, b any) {
	t.Helper()
	for i := range reflect.TypeOf(a).NumField() {
		f := reflect.TypeOf(a).Field(i)
		x, y := reflect.ValueOf(a).Field(i), reflect.ValueOf(b).Field(i)
		if f.IsExported() && f.Name != "Outcomes" && x.Interface() != y.Interface() {
			t.Errorf("%s.%s is %v of a check, and %v of a take", what, f.Name, x, y)
		}
	}
}
