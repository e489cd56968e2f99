package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// settling is one limit and key with a clock that is set, by one way of calling.
type settling struct{ pausing }

func (s settling) at(seconds float64) settling {
	s.pausing.at(seconds)
	return s
}

// reserves takes n tokens, ahead of time if they are not there.
func (s settling) reserves(n float64) ratelimit.Reservation {
	s.t.Helper()
	return takeOK(s.t, first(s.v.RateLimit(s.t.Context(), s.r.Count(n).OrReserve()))).Reservation()
}

func (s settling) settle(want bool, r ratelimit.Reservation, used float64) {
	s.t.Helper()
	if ok, err := s.v.Settle(s.t.Context(), r, s.r.Count(used)); err != nil || ok != want {
		s.t.Fatalf("settled %v and %v, want %v", ok, err, want)
	}
}

func (s settling) release(r ratelimit.Reservation) {
	s.t.Helper()
	if ok, err := s.v.Release(s.t.Context(), r); err != nil || !ok {
		s.t.Fatalf("released %v and %v", ok, err)
	}
}

// runs checks when the work of a reservation may run, in seconds after rig.Noon.
func (s settling) runs(r ratelimit.Reservation, want float64) {
	s.t.Helper()
	state, err := s.v.Value(s.t.Context(), s.r)
	if err != nil {
		s.t.Fatal(err)
	}
	if run, _ := r.Takes[0].RunAt(state); seconds(run) != want {
		s.t.Errorf("%v tokens that were reserved run at %v by now, want %v", r.Takes[0].Count, seconds(run), want)
	}
}

func (s settling) has(want float64) {
	s.t.Helper()
	if state, err := s.v.Value(s.t.Context(), s.r); err != nil || state.Value != want {
		s.t.Errorf("%v tokens (%v), want %v", state.Value, err, want)
	}
}

// settledEachWay runs the test by each way of calling, for one rule.
func settledEachWay(t *testing.T, rule ratelimit.Rule, test func(s settling)) {
	t.Parallel()
	limit := ratelimit.MustDefine("settled", rule)
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			c, pool := weirtest.NewClock(rig.Noon), pgtest.Pool(t)
			l := rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: c.Now})
			test(settling{pausing{t, l, pool, w.Verbs(t, l, pool), c, limit.For("k")}})
		})
	}
}

// However many try to settle a reservation at once, one does.
func TestAReservationIsSettledOnce(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("once", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	for _, w := range rig.Crowded() {
		for _, used := range []float64{4, 14} {
			t.Run(fmt.Sprintf("%s/%v", w.Name, used), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
				v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable}), pool)
				r := takeOK(t, first(v.RateLimit(t.Context(), limit.For("k").Count(10)))).Reservation()
				var settled atomic.Int64
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						ok, err := v.Settle(t.Context(), r, limit.For("k").Count(used))
						if err != nil {
							t.Error(err)
						}
						if ok {
							settled.Add(1)
						}
					})
				}
				wg.Wait()
				if settled.Load() != 1 {
					t.Errorf("settled %d times", settled.Load())
				}
				wantValue(t, rig.Limiter(t, ratelimit.Config{}), pool, limit.For("k"), 100-used)
				if ok, err := v.Release(t.Context(), r); ok || err != nil {
					t.Errorf("released after it was settled: %v, %v", ok, err)
				}
			})
		}
	}
}

func TestASettlementRollsBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("rolled", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	a := l.Autocommit(pool)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	k := limit.For("k")
	r := takeOK(t, first(a.RateLimit(t.Context(), k.Count(10)))).Reservation()
	undone := errors.New("undone")
	for _, level := range rig.Levels {
		err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
			func(ctx context.Context, tx pgx.Tx) error {
				for _, want := range []bool{true, false} {
					if ok, err := l.Settle(ctx, tx, r, k.Count(4)); err != nil || ok != want {
						return fmt.Errorf("settled %v and %w, want %v", ok, err, want)
					}
				}
				return undone
			})
		if !errors.Is(err, undone) {
			t.Fatal(err)
		}
		wantValue(t, l, pool, k, 90)
	}
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if ok, err := l.Release(ctx, inner, r); err != nil || !ok {
			return fmt.Errorf("released %v and %w in a savepoint", ok, err)
		}
		return inner.Rollback(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	wantValue(t, l, pool, k, 90)
	for _, want := range []bool{true, false} {
		if ok, err := rig.SQL(l, db, false).Settle(t.Context(), r, k.Count(4)); err != nil || ok != want {
			t.Fatalf("settled %v and %v, want %v", ok, err, want)
		}
		wantValue(t, l, pool, k, 96)
	}
}

// A call of a model counts as one request, whatever it uses, and for as many tokens as it has used
// in the end.
func TestSeveralLimitsAreSettledTogether(t *testing.T) {
	t.Parallel()
	requests := ratelimit.MustDefine("requests", ratelimit.TokenBucket{Rate: 60, Period: rig.Century})
	tokens := ratelimit.MustDefine("tokens", ratelimit.FixedWindow{Rate: 10_000, Period: rig.Never})
	spend := ratelimit.MustDefine("spend", ratelimit.TokenBucket{Rate: 5, Period: rig.Century})
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		all := []ratelimit.Request{tokens.For("acme").Count(4000), requests.For("acme"), spend.Global().Count(2)}
		want := func(values ...float64) {
			t.Helper()
			for i, r := range all {
				if s, err := v.Value(t.Context(), r); err != nil || !sameTokens(s.Value, values[i]) {
					t.Errorf("%v left (%v), want %v", s.Value, err, values[i])
				}
			}
		}
		r := takeOK(t, first(v.RateLimit(t.Context(), all...))).Reservation()
		want(6000, 59, 3)
		for _, wrong := range []ratelimit.Request{tokens.For("other"), tokens.Global(), tokens.For("acme").Count(-1)} {
			if ok, err := v.Settle(t.Context(), r, tokens.For("acme").Count(1), wrong); ok ||
				!errors.Is(err, ratelimit.ErrInvalid) {
				t.Errorf("%v and %v", ok, err)
			}
		}
		want(6000, 59, 3)
		// prompt and completion are counted apart
		ok, err := v.Settle(t.Context(), r, tokens.For("acme").Count(900),
			spend.Global().Count(2.5), tokens.For("acme").Count(600))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		want(8500, 59, 2.5)

		again := takeOK(t, first(v.RateLimit(t.Context(), all...))).Reservation()
		want(4500, 58, 0.5)
		if ok, err := v.Release(t.Context(), again); err != nil || !ok {
			t.Fatal(ok, err)
		}
		want(8500, 59, 2.5)
	})
}

// Whatever is taken, settled, released or left alone by whomever: what is gone is what was used,
// and what is held.
func TestTheBooksOfReservationsBalance(t *testing.T) {
	t.Parallel()
	const capacity = 400
	limit := ratelimit.MustDefine("books", ratelimit.TokenBucket{Rate: 1,
		Period: 100_000 * time.Hour, Capacity: ratelimit.Tokens(capacity)})
	k := limit.For("k")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	l := rig.Limiter(t, ratelimit.Config{})
	// Callers at READ COMMITTED do not queue, so others may lose the row to them many times: with a
	// deadline they run again until then.
	ctx, cancel := context.WithTimeout(t.Context(), 5*hung)
	defer cancel()
	var mu sync.Mutex
	var gone float64
	var settled, released, kept, denied int
	var wg sync.WaitGroup
	for _, w := range rig.Crowded() {
		v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable}), pool)
		for range 2 {
			wg.Go(func() {
				for range 30 {
					r := k.Count(float64(1+rand.IntN(400)) / 16)
					if rand.IntN(4) > 0 {
						r = r.OrReserve()
					}
					res, err := v.RateLimit(ctx, r)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if !res.OK {
						denied++
						mu.Unlock()
						continue
					}
					held := res.Reservation()
					used := held.Takes[0].Count
					n := rand.IntN(10)
					switch {
					case n < 6:
						settled++
						used *= rand.Float64() * 1.5
					case n < 8:
						released++
						used = 0
					default:
						kept++
					}
					gone += used
					mu.Unlock()
					ok := true
					switch {
					case n < 6:
						ok, err = v.Settle(ctx, held, k.Count(used/2), k.Count(used-used/2))
					case n < 8:
						ok, err = v.Release(ctx, held)
					}
					if err != nil || !ok {
						t.Error(ok, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	s, err := l.Autocommit(pool).Value(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d settled, %d released, %d kept, %d denied, %v of %v left", settled, released, kept,
		denied, s.Value, capacity)
	if diff := capacity - s.Value - gone; diff > flown || diff < -flown {
		t.Errorf("%v tokens are gone, and %v were used or held", capacity-s.Value, gone)
	}
	if settled == 0 || released == 0 || kept == 0 || denied == 0 {
		t.Error("the test should see all of them")
	}
}

// What is given back fills up to the capacity by which the row was taken from last.
func TestSettlingAfterTheRuleHasChanged(t *testing.T) {
	settledEachWay(t, ratelimit.TokenBucket{Rate: 100, Period: rig.Never,
		MaxReserved: ratelimit.Tokens(100)}, func(s settling) {
		by := func(rule ratelimit.Rule, n float64) ratelimit.Reservation {
			s.t.Helper()
			return takeOK(s.t, first(s.v.RateLimit(s.t.Context(), s.r.Rule(rule).Count(n).OrReserve()))).Reservation()
		}
		small := ratelimit.TokenBucket{Rate: 10, Period: rig.Never}
		a, b := by(nil, 50), by(nil, 45) // 5 left
		by(small, 1)
		s.settle(true, a, 0)
		s.has(10)
		by(nil, 2) // the larger rule again: it has room for the rest
		s.settle(true, b, 15)
		s.has(38)
		window := ratelimit.FixedWindow{Rate: 20, Period: rig.Never, Start: rig.Noon}
		c := by(window, 16) // 20 were left of 38
		s.settle(true, c, 21)
		s.has(-1)
		d := by(small, 3)
		s.settle(true, d, 0)
		s.has(-1)
	})
}

// A row that is gone, as it was full and has been pruned, is a full limit: what is settled then
// neither mints tokens nor is forgotten.
func TestSettlingWhereTheRowIsGone(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("gone",
		ratelimit.TokenBucket{Rate: 1, Period: rig.Never, Capacity: ratelimit.Tokens(100)})
	for _, c := range []struct {
		name       string
		used, want float64
	}{
		{"Less", 10, 100}, {"AsReserved", 40, 100}, {"More", 70, 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			k := limit.For("k")
			res := takeOK(t, first(a.RateLimit(t.Context(), k.Count(40))))
			if _, err := pool.Exec(t.Context(), `DELETE FROM weir_balance`); err != nil {
				t.Fatal(err)
			}
			for _, want := range []bool{true, false} {
				if ok, err := a.Settle(t.Context(), res.Reservation(), k.Count(c.used)); err != nil || ok != want {
					t.Fatal(ok, err)
				}
			}
			if s, err := a.Value(t.Context(), k); err != nil || !sameTokens(s.Value, c.want) {
				t.Errorf("%v are left (%v), want %v", s.Value, err, c.want)
			}
		})
	}
}
