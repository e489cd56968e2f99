package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// After 30 days nobody knows any more whether it was settled.
func TestAReservationIsSettledForThirtyDays(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		const month = 30 * 24 * 3600
		s.at(0).reserves(8)
		soon, late, never := s.reserves(2), s.reserves(2), s.reserves(2)
		s.clock.Set(rig.Noon.Add((month+2)*time.Second - time.Microsecond))
		s.settle(true, soon, 1)
		s.at(month+4).settle(false, late, 100)
		s.has(8)
		s.at(month+1e6).settle(false, never, 100)
		if ok, err := s.v.Release(s.t.Context(), never); ok || err != nil {
			s.t.Errorf("released %v and %v", ok, err)
		}
		s.has(8)
		var n int
		if err := s.pool.QueryRow(s.t.Context(), `SELECT count(*) FROM weir_settled`).Scan(&n); err != nil || n != 1 {
			s.t.Errorf("%d rows (%v) of what was settled, want 1", n, err)
		}
	})
}

// A limit may say for how long what was taken of it can be settled. Its settlements are kept for
// that time and pruned then, and nobody settles again what is not known any more: the time goes
// with the reservation, whatever another process has defined.
func TestHowLongSettlementsAreKeptIsSet(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	v := l.Autocommit(pool)
	rule := ratelimit.TokenBucket{Rate: 10, Period: 100 * 365 * 24 * hour}
	other := ratelimit.MustDefine("other", rule)
	for _, shards := range []int{1, 3} {
		name := fmt.Sprint("short", shards)
		short := ratelimit.MustDefine(name, rule, ratelimit.SettleWithin(hour), ratelimit.Shards(shards))
		reserve := func(r ...ratelimit.Request) (back ratelimit.Reservation) {
			t.Helper()
			text, err := json.Marshal(takeOK(t, first(v.RateLimit(t.Context(), r...))).Reservation())
			if err == nil {
				err = json.Unmarshal(text, &back)
			}
			if err != nil {
				t.Fatal(err)
			}
			return back
		}
		settle := func(want bool, r ratelimit.Reservation) {
			t.Helper()
			if ok, err := v.Settle(t.Context(), r, short.Global().Count(0)); err != nil || ok != want {
				t.Errorf("%d shards: settled %v, %v, want %v", shards, ok, err, want)
			}
		}
		has := func(want float64) {
			t.Helper()
			if s, err := v.Value(t.Context(), short.Global()); err != nil || math.Abs(s.Value-want) > 0.01 {
				t.Errorf("%d shards: %v left, %v, want %v", shards, s.Value, err, want)
			}
		}
		soon, late, both := reserve(short.Global()), reserve(short.Global()), reserve(short.Global(), other.Global())
		short = ratelimit.MustDefine(name, rule, ratelimit.Shards(shards)) // a release that says nothing of it
		clock.Add(hour - time.Microsecond)
		settle(true, soon)
		settle(false, soon)
		has(8)
		if pruned(t, l, pool, ratelimit.PruneConfig{}); rowsOf(t, pool, "weir_settled") != 1 {
			t.Error("a settlement that somebody may try again is not kept")
		}
		clock.Add(time.Microsecond)
		if pruned(t, l, pool, ratelimit.PruneConfig{}); rowsOf(t, pool, "weir_settled") != 0 {
			t.Error("a settlement is kept for longer than the limit says")
		}
		settle(false, soon)
		settle(false, late)
		has(8)
		settle(true, both) // the longest time of its limits holds
		has(9)
		clock.Add(31 * 24 * hour)
		pruned(t, l, pool, ratelimit.PruneConfig{})
		settle(false, both)
		has(9)
	}
	for _, d := range []time.Duration{-hour, 0, time.Second - 1, 11 * 365 * 24 * hour} {
		if _, err := ratelimit.Define("bad", rule, ratelimit.SettleWithin(d)); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%v: %v, want an error that matches ErrInvalid", d, err)
		}
	}
}
