package weirtest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// What a row keeps that its State does not tell, it keeps in the fake: by which rule it was
// written, and whether there was one.
func TestTheFakeKeepsWhatARowKeeps(t *testing.T) {
	t.Parallel()
	pool, ctx := pgtest.Pool(t), t.Context()
	forever := 1 << 40 * time.Microsecond
	small, large := ratelimit.TokenBucket{Rate: 10, Period: forever}, ratelimit.TokenBucket{Rate: 20, Period: forever}
	start := new(weirtest.Clock).Now()
	window := ratelimit.FixedWindow{Rate: 10, Period: time.Minute, Capacity: ratelimit.Tokens(20), Start: start}
	type script struct {
		verbs
		*weirtest.Clock
		k, shadow ratelimit.Request // by the small rule
	}
	take := func(v verbs, requests ...ratelimit.Request) ratelimit.Result {
		res, err := v.RateLimit(ctx, requests...)
		if err != nil || !res.OK {
			t.Error(res, err)
		}
		return res
	}
	var all []func(script) (ratelimit.Request, []error)
	add := func(do func(s script) (ratelimit.Request, []error)) { all = append(all, do) }
	add(func(s script) (ratelimit.Request, []error) { // without a row it is full by any rule
		return s.k.Rule(large), []error{s.Pause(ctx, time.Second, s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) { // and when it was reset
		return s.k.Rule(large), []error{s.ResetRateLimit(ctx, s.k), s.Pause(ctx, time.Second, s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) {
		return s.k.Rule(large), []error{s.Resume(ctx, s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) { // lowered, although another limit denies the call
		other := s.k.Limit().For("other").Rule(small)
		take(s, s.k.Rule(large))
		take(s, other.Count(10))
		_, err := s.RateLimit(ctx, s.k, other)
		return s.k.Rule(large), []error{err}
	})
	add(func(s script) (ratelimit.Request, []error) { // options do not matter
		take(s, s.k.Rule(large))
		return s.k.Rule(large).Leave(3), []error{s.Pause(ctx, time.Second, s.k, s.k.OrReserve()),
			s.Resume(ctx, s.k.Leave(20)), s.ResetRateLimit(ctx, s.k.Leave(1), s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) { // which changes no balance
		take(s, s.k.Rule(large))
		return s.k.Rule(large), []error{s.Resume(ctx, s.k),
			s.Pause(ctx, time.Second, s.k.Rule(large)), s.Resume(ctx, s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) { // nor does a pause, by any rule
		take(s, s.k.Rule(large))
		s.Add(time.Second)
		return s.k.Rule(large), []error{s.Pause(ctx, time.Second, s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) { // up to what the last rule holds
		res := take(s, s.k.Rule(large).Count(5))
		take(s, s.k)
		return s.k.Rule(large), []error{s.GiveBack(ctx, res)}
	})
	add(func(s script) (ratelimit.Request, []error) { // a bucket goes on from the take, not from where its window began
		s.Add(50 * time.Second)
		take(s, s.k.Rule(window).Count(20))
		s.Add(10 * time.Second)
		return s.k.Rule(ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Minute}), nil
	})
	add(func(s script) (ratelimit.Request, []error) { // what has moved up is not given back again
		k := s.k.Rule(window)
		first := take(s, k.Count(5))
		take(s, k.Count(10))
		ahead := take(s, k.Count(12).OrReserve())
		err := s.GiveBack(ctx, first)
		s.Add(time.Minute)
		return k, []error{err, s.GiveBack(ctx, ahead)}
	})
	add(func(s script) (ratelimit.Request, []error) {
		take(s, s.k.Count(8))
		return s.k, []error{s.GiveBack(ctx, take(s, s.k.Count(5).OnCredit()))}
	})
	add(func(s script) (ratelimit.Request, []error) {
		return s.shadow, []error{s.GiveBack(ctx, take(s, s.k.Count(3), s.shadow.Count(2), s.shadow))}
	})
	add(func(s script) (ratelimit.Request, []error) {
		take(s, s.shadow.Count(3))
		return s.shadow, []error{s.GiveBack(ctx, take(s, s.shadow.Count(3))),
			s.GiveBack(ctx, take(s, s.shadow.Count(9)))}
	})
	add(func(s script) (ratelimit.Request, []error) { // though the other is paused already
		take(s, s.shadow)
		return s.shadow, []error{s.Pause(ctx, time.Minute, s.k), s.Pause(ctx, time.Minute, s.k, s.shadow)}
	})
	settle := func(s script, res ratelimit.Result, used float64) error {
		ok, err := s.Settle(ctx, res.Reservation(), s.k.Count(used))
		if err == nil && !ok {
			err = errors.New("it was settled before")
		}
		return err
	}
	add(func(s script) (ratelimit.Request, []error) { // up to what the last rule holds
		res := take(s, s.k.Rule(large).Count(5))
		take(s, s.k)
		return s.k.Rule(large), []error{settle(s, res, 1)}
	})
	add(func(s script) (ratelimit.Request, []error) { // of what the last rule holds
		res := take(s, s.k.Rule(large).Count(5))
		take(s, s.k)
		return s.k.Rule(large), []error{s.ResetRateLimit(ctx, s.k), settle(s, res, 7)}
	})
	add(func(s script) (ratelimit.Request, []error) { // a key is reset without a rule
		res := take(s, s.k.Rule(large).Count(5))
		return s.k.Rule(large), []error{s.ResetKey(ctx, s.k.Key()), settle(s, res, 7)}
	})
	add(func(s script) (ratelimit.Request, []error) { // a balance without a row is not reset
		err := s.ResetKey(ctx, s.k.Key())
		return s.k.Rule(large), []error{err, s.Pause(ctx, time.Second, s.k)}
	})
	add(func(s script) (ratelimit.Request, []error) { // a pause goes on
		take(s, s.k.Count(8))
		return s.k, []error{s.Pause(ctx, time.Minute, s.k), s.ResetKey(ctx, s.k.Key())}
	})
	add(func(s script) (ratelimit.Request, []error) { // what waits moves up, and back
		first := take(s, s.k.Count(10))
		ahead := take(s, s.k.Count(5).OrReserve())
		return s.k, []error{settle(s, first, 7), settle(s, ahead, 9)}
	})
	add(func(s script) (ratelimit.Request, []error) { // who releases work that waits moves none
		take(s, s.k.Count(10))
		_, err := s.Release(ctx, take(s, s.k.Count(5).OrReserve()).Reservation())
		return s.k, []error{err}
	})
	add(func(s script) (ratelimit.Request, []error) { // of windows that have gone by nothing comes back
		k := s.k.Rule(window)
		take(s, k.Count(20))
		ahead := take(s, k.Count(15).OrReserve())
		s.Add(2 * time.Minute)
		return k, []error{settle(s, ahead, 3)}
	})
	for i, do := range all {
		clock := new(weirtest.Clock)
		l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, v := range []verbs{l.Autocommit(pool), &weirtest.Limiter{Clock: clock}} {
			name := fmt.Sprint("row", i)
			clock.Set(start)
			r, errs := do(script{v, clock, ratelimit.MustDefine(name, small).For("k"),
				ratelimit.MustDefine(name, small, ratelimit.Shadow()).For("k")})
			state, err := v.Value(ctx, r)
			if err := errors.Join(append(errs, err)...); err != nil {
				t.Fatal(i, err)
			}
			told = append(told, fmt.Sprintf("%+v", state))
		}
		if told[0] != told[1] {
			t.Errorf("%d:\nreal %s\nfake %s", i, told[0], told[1])
		}
	}
}
