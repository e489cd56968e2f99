package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
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

// runs checks when the work of a reservation may run, in seconds after w0.
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
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			c, pool := &clock{t: w0}, pgtest.Pool(t)
			l := limiter(t, ratelimit.Config{Portable: w.portable, Clock: c.now})
			test(settling{pausing{t, l, pool, w.verbs(t, l, pool), c, limit.For("k")}})
		})
	}
}

// However many try to settle a reservation at once, one does.
func TestAReservationIsSettledOnce(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("once", ratelimit.TokenBucket{Rate: 100, Period: never})
	for _, w := range ways {
		for _, used := range []float64{4, 14} {
			t.Run(fmt.Sprintf("%s/%v", w.name, used), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
				v := w.verbs(t, limiter(t, ratelimit.Config{Portable: w.portable}), pool)
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
				wantValue(t, limiter(t, ratelimit.Config{}), pool, limit.For("k"), 100-used)
				if ok, err := v.Release(t.Context(), r); ok || err != nil {
					t.Errorf("released after it was settled: %v, %v", ok, err)
				}
			})
		}
	}
}

func TestASettlementRollsBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("rolled", ratelimit.TokenBucket{Rate: 100, Period: never})
	pool, l := pgtest.Pool(t), limiter(t, ratelimit.Config{})
	a := l.Autocommit(pool)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	k := limit.For("k")
	r := takeOK(t, first(a.RateLimit(t.Context(), k.Count(10)))).Reservation()
	undone := errors.New("undone")
	for _, level := range levels {
		err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
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
		if ok, err := (sqlVerbs{l, db, false}).Settle(t.Context(), r, k.Count(4)); err != nil || ok != want {
			t.Fatalf("settled %v and %v, want %v", ok, err, want)
		}
		wantValue(t, l, pool, k, 96)
	}
}

// A call of a model counts as one request, whatever it uses, and for as many tokens as it has used in the end.
func TestSeveralLimitsAreSettledTogether(t *testing.T) {
	t.Parallel()
	requests := ratelimit.MustDefine("requests", ratelimit.TokenBucket{Rate: 60, Period: never})
	tokens := ratelimit.MustDefine("tokens", ratelimit.FixedWindow{Rate: 10_000, Period: never})
	spend := ratelimit.MustDefine("spend", ratelimit.TokenBucket{Rate: 5, Period: never})
	eachWay(t, func(t *testing.T, v verbs, _ *pgxpool.Pool) {
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
			if ok, err := v.Settle(t.Context(), r, tokens.For("acme").Count(1), wrong); ok || !errors.Is(err, ratelimit.ErrInvalid) {
				t.Errorf("%v and %v", ok, err)
			}
		}
		want(6000, 59, 3)
		// prompt and completion are counted apart
		ok, err := v.Settle(t.Context(), r, tokens.For("acme").Count(900), spend.Global().Count(2.5), tokens.For("acme").Count(600))
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

// What was used beyond the reservation is owed, whatever may be reserved, and comes before those who wait.
func TestExcessIsADebtThatPutsTheLineOff(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		a, b := s.at(0).reserves(8), s.reserves(4)
		s.runs(b, 4)
		s.at(2).settle(true, a, 20)
		s.at(2).has(-14) // 8 may be reserved
		s.runs(b, 16)
		s.at(2).take(1, true, false, -14, 9, 0)
		s.at(9).take(1, true, true, -8, 17, 0)
		s.runs(b, 16)
		s.at(16).settle(true, b, 4)
		s.has(-1)
	})
}

func TestExcessIsADebtThatPutsTheLineOffByWindows(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		a, b, c := s.at(0).reserves(10), s.reserves(5), s.reserves(5)
		s.at(70).settle(true, a, 18)
		s.runs(b, 120)
		s.runs(c, 120)
		s.at(80).settle(true, b, 8)
		s.runs(c, 180)
		s.has(-11)
	})
}

// Who had the tokens at once waits for nobody's excess, and for no pause but while it lasts, whatever windows begin in it.
func TestWorkWhoseTokensWereThereIsNotPutOff(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		overdue := func(r ratelimit.Reservation) {
			s.t.Helper()
			state, err := s.v.Value(s.t.Context(), s.r)
			if err != nil {
				s.t.Fatal(err)
			}
			if run, paced := r.Takes[0].RunAt(state); run.After(s.clock.now()) || paced.After(s.clock.now()) {
				s.t.Errorf("at %v its work is to run at %v and %v", seconds(s.clock.now()), seconds(run), seconds(paced))
			}
		}
		a, b := s.at(50).reserves(2), s.reserves(3)
		s.at(51).settle(true, a, 20)
		overdue(b)
		s.at(55).pause(10) // a window begins
		s.at(56).runs(b, 65)
		s.at(65)
		overdue(b)
		s.at(240).pause(10) // none does
		c := s.at(241).reserves(1)
		s.runs(c, 250)
		s.at(242).resume()
		overdue(c)
	})
}

// Those who wait come earlier by exactly what is given back of those before them. What was reserved and will not be used goes
// to the next to come.
func TestWhatIsGivenBackBringsTheLineForward(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		a, b, c := s.at(0).reserves(8), s.reserves(4), s.reserves(2)
		s.runs(b, 4)
		s.runs(c, 6)
		s.at(1).settle(true, a, 6.5)
		s.runs(b, 2.5)
		s.runs(c, 4.5)
		s.has(-3.5)
		s.at(2).release(b) // it was between, and c keeps its time
		s.runs(c, 4.5)
		s.has(1.5)
		s.at(2).take(1, false, true, 0.5, 0, 0)
		s.at(5).settle(true, c, 0)
		s.has(5.5)
	})
}

// The tokens of a window end with it. Given to those who wait they would come on top of those of the window then.
func TestAWindowsTokensSettledLateAreNoGift(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		now, next, after, last := s.at(0).reserves(10), s.reserves(10), s.reserves(10), s.reserves(5)
		s.at(60).settle(true, now, 0) // the row still stands in the window before
		s.runs(next, 60)
		s.runs(after, 120)
		s.runs(last, 180)
		s.at(130).settle(true, next, 0)
		s.runs(after, 120)
		s.runs(last, 180)
		s.at(170).settle(true, after, 4) // in its own: six of the ten are there for the last
		s.runs(last, 120)
		s.at(180).has(10)
		s.take(10, false, true, 0, 0, 0)
		s.settle(true, last, 0)
		s.has(0)
	})
}

func TestAWindowsTokensSettledInItAreThereAgain(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		a, b := s.at(0).reserves(10), s.reserves(5)
		s.runs(b, 60)
		s.at(59).settle(true, a, 4)
		s.runs(b, 0)
		s.has(1)
		s.take(1, false, true, 0, 0, 0)
		s.at(60).settle(true, b, 0)
		s.has(10)
	})
}

// Whatever is taken, settled, released or left alone by whomever: what is gone is what was used, and what is held.
func TestTheBooksOfReservationsBalance(t *testing.T) {
	t.Parallel()
	const capacity = 400
	limit := ratelimit.MustDefine("books", ratelimit.TokenBucket{Rate: 1, Period: 100_000 * time.Hour, Capacity: ratelimit.Tokens(capacity)})
	k := limit.For("k")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	l := limiter(t, ratelimit.Config{})
	var mu sync.Mutex
	var gone float64
	var settled, released, kept, denied int
	var wg sync.WaitGroup
	for _, w := range ways {
		v := w.verbs(t, limiter(t, ratelimit.Config{Portable: w.portable}), pool)
		for range 2 {
			wg.Go(func() {
				for range 30 {
					r := k.Count(float64(1+rand.IntN(400)) / 16)
					if rand.IntN(4) > 0 {
						r = r.OrReserve()
					}
					res, err := v.RateLimit(t.Context(), r)
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
						ok, err = v.Settle(t.Context(), held, k.Count(used/2), k.Count(used-used/2))
					case n < 8:
						ok, err = v.Release(t.Context(), held)
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
	t.Logf("%d settled, %d released, %d kept, %d denied, %v of %v left", settled, released, kept, denied, s.Value, capacity)
	if diff := capacity - s.Value - gone; diff > flown || diff < -flown {
		t.Errorf("%v tokens are gone, and %v were used or held", capacity-s.Value, gone)
	}
	if settled == 0 || released == 0 || kept == 0 || denied == 0 {
		t.Error("the test should see all of them")
	}
}

// After 30 days nobody knows any more whether it was settled.
func TestAReservationIsSettledForThirtyDays(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		const month = 30 * 24 * 3600
		s.at(0).reserves(8)
		soon, late, never := s.reserves(2), s.reserves(2), s.reserves(2)
		s.clock.set(w0.Add((month+2)*time.Second - time.Microsecond))
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

// A limit may say for how long what was taken of it can be settled. Its settlements are kept for that time and pruned then, and
// nobody settles again what is not known any more: the time goes with the reservation, whatever another process has defined.
func TestHowLongSettlementsAreKeptIsSet(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	pool, clock := pgtest.Pool(t), newClock()
	l := limiter(t, ratelimit.Config{Clock: clock.now})
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
		clock.add(hour - time.Microsecond)
		settle(true, soon)
		settle(false, soon)
		has(8)
		if pruned(t, l, pool, ratelimit.PruneConfig{}); rowsOf(t, pool, "weir_settled") != 1 {
			t.Error("a settlement that somebody may try again is not kept")
		}
		clock.add(time.Microsecond)
		if pruned(t, l, pool, ratelimit.PruneConfig{}); rowsOf(t, pool, "weir_settled") != 0 {
			t.Error("a settlement is kept for longer than the limit says")
		}
		settle(false, soon)
		settle(false, late)
		has(8)
		settle(true, both) // the longest time of its limits holds
		has(9)
		clock.add(31 * 24 * hour)
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

// Nothing flows in during a pause, but what is not used goes back, and what was used beyond is owed.
func TestSettlingInAPause(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		a, b, c := s.at(0).reserves(8), s.reserves(4), s.reserves(1)
		s.at(2).pause(10)
		s.runs(b, 14)
		s.at(5).settle(true, a, 7)
		s.runs(b, 13)
		s.runs(c, 14)
		s.has(-2)
		s.at(6).settle(true, b, 9)
		s.runs(c, 19)
		s.has(-7)
		s.at(12).has(-7)
		s.at(19).has(0)
	})
	t.Run("Windows", func(t *testing.T) {
		settledEachWay(t, tenAMinute, func(s settling) {
			a, b, c := s.at(50).reserves(10), s.reserves(5), s.reserves(10)
			s.runs(b, 60)
			s.runs(c, 120)
			s.at(55).pause(100) // to 155: two windows begin
			s.runs(b, 180)
			s.runs(c, 240)
			s.at(150).settle(true, a, 1) // time stands still, so that it is in its own window
			s.runs(b, 155+15)
			s.runs(c, 180)
			s.has(-6)
		})
	})
}

// What is given back fills up to the capacity by which the row was taken from last.
func TestSettlingAfterTheRuleHasChanged(t *testing.T) {
	settledEachWay(t, ratelimit.TokenBucket{Rate: 100, Period: never, MaxReserved: ratelimit.Tokens(100)}, func(s settling) {
		by := func(rule ratelimit.Rule, n float64) ratelimit.Reservation {
			s.t.Helper()
			return takeOK(s.t, first(s.v.RateLimit(s.t.Context(), s.r.Rule(rule).Count(n).OrReserve()))).Reservation()
		}
		small := ratelimit.TokenBucket{Rate: 10, Period: never}
		a, b := by(nil, 50), by(nil, 45) // 5 left
		by(small, 1)
		s.settle(true, a, 0)
		s.has(10)
		by(nil, 2) // the larger rule again: it has room for the rest
		s.settle(true, b, 15)
		s.has(38)
		window := ratelimit.FixedWindow{Rate: 20, Period: never, Start: w0}
		c := by(window, 16) // 20 were left of 38
		s.settle(true, c, 21)
		s.has(-1)
		d := by(small, 3)
		s.settle(true, d, 0)
		s.has(-1)
	})
}

// A row that is gone, as it was full and has been pruned, is a full limit: what is settled then neither mints tokens nor is
// forgotten.
func TestSettlingWhereTheRowIsGone(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("gone", ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(100)})
	for _, c := range []struct {
		name       string
		used, want float64
	}{
		{"Less", 10, 100}, {"AsReserved", 40, 100}, {"More", 70, 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			a := limiter(t, ratelimit.Config{}).Autocommit(pool)
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
