package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
	"github.com/weir-go/weir/weirtest"
)

// eachWayTwice is eachWay with two processes: two limiters, each of which knows only what it has
// seen itself.
func eachWayTwice(t *testing.T, test func(t *testing.T, here, there rig.Verbs, c *weirtest.Clock, pool *pgxpool.Pool)) {
	eachTwice(t, rig.Ways, test)
}

func eachTwice(
	t *testing.T, ways []rig.Way,
	test func(t *testing.T, here, there rig.Verbs, c *weirtest.Clock, pool *pgxpool.Pool),
) {
	for _, w := range ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			open := func() rig.Verbs {
				return w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: clock.Now}), pool)
			}
			test(t, open(), open(), clock, pool)
		})
	}
}

// reshard changes the layout as an operator does, by a process of his own.
func reshard(t testing.TB, pool *pgxpool.Pool, clock func() time.Time, n int, r ...ratelimit.Request) {
	t.Helper()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock})
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	if err := l.Reshard(t.Context(), tx, n, r...); err != nil {
		t.Fatal(err)
	}
	rig.Commit(t, tx)
}

func wantLeft(t testing.TB, v rig.Verbs, r ratelimit.Request, want float64) {
	t.Helper()
	if s, err := v.Value(t.Context(), r); err != nil || math.Abs(s.Value-want) > flown {
		t.Errorf("%v left (%v), want %v", s.Value, err, want)
	}
}

// wantOnlyOpen checks that the open rows of a limit are those of its layout, of n shards.
func wantOnlyOpen(t testing.TB, pool *pgxpool.Pool, r ratelimit.Request, n int) {
	t.Helper()
	var head float64
	var open []int32
	if err := pool.QueryRow(t.Context(), `SELECT min(value) FILTER (WHERE shard = -1),
			array_agg(shard ORDER BY shard) FILTER (WHERE shard >= 0 AND value > '-Infinity')
		FROM weir_balance WHERE name = $1 AND key = $2`, r.Limit().Name(), r.Key()).Scan(&head, &open); err != nil {
		t.Fatal(err)
	}
	layout, ok := shard.Numbered(head)
	if !ok || layout.Shards != n {
		t.Fatalf("the head says %v, want %d shards", head, n)
	}
	want := make([]int32, n)
	for i := range want {
		want[i] = layout.Row(i)
	}
	if !slices.Equal(open, want) {
		t.Errorf("rows %v of %q are open, want %v", open, r.Key(), want)
	}
}

// Whatever layout a process believes in, what it does reaches the limit, and never the rows that a
// reshard has closed.
func TestStaleBooksDoNotMisleadAReshardedLimit(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 48, Period: rig.Never}
	for _, to := range []int{1, 2, 3, 16} {
		// the limiter of each has no larger number than the database, so nothing converts by itself
		small, four := ratelimit.MustDefine("stale", rule), ratelimit.MustDefine("stale", rule, ratelimit.Shards(4))
		t.Run(fmt.Sprint(to), func(t *testing.T) {
			t.Parallel()
			eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool) {
				for name, do := range map[string]func(held ratelimit.Result, r ratelimit.Request) (float64, error){
					"reset": func(_ ratelimit.Result, r ratelimit.Request) (float64, error) {
						return 48, there.ResetRateLimit(t.Context(), r)
					},
					"give back": func(held ratelimit.Result, _ ratelimit.Request) (float64, error) {
						return 32, there.GiveBack(t.Context(), held)
					},
					"release": func(held ratelimit.Result, _ ratelimit.Request) (float64, error) {
						_, err := there.Release(t.Context(), held.Reservation())
						return 32, err
					},
					"settle less": func(held ratelimit.Result, r ratelimit.Request) (float64, error) {
						_, err := there.Settle(t.Context(), held.Reservation(), r.Count(4))
						return 28, err
					},
					"settle more": func(held ratelimit.Result, r ratelimit.Request) (float64, error) {
						_, err := there.Settle(t.Context(), held.Reservation(), r.Count(28))
						return 4, err
					},
					"take": func(_ ratelimit.Result, r ratelimit.Request) (float64, error) {
						_, err := there.RateLimit(t.Context(), r.Count(4))
						return 16, err
					},
				} {
					if res, err := here.RateLimit(t.Context(), four.For(name).Count(16)); err != nil || !res.OK {
						t.Fatal(res, err)
					}
					res, err := there.RateLimit(t.Context(), small.For(name).Count(12))
					if err != nil || !res.OK {
						t.Fatal(res, err)
					}
					reshard(t, pool, clock.Now, to, small.For(name))
					wantLeft(t, here, small.For(name), 20)
					want, err := do(res, small.For(name))
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					for who, v := range map[string]rig.Verbs{"here": here, "there": there} {
						if s, err := v.Value(t.Context(), small.For(name)); err != nil ||
							math.Abs(s.Value-want) > flown {
							t.Errorf("%s, %s: %v left (%v), want %v", name, who, s.Value, err, want)
						}
					}
					wantOnlyOpen(t, pool, small.For(name), to)
				}
			})
		})
	}
}

// Pauses and resumes reach a limit whose layout has changed unseen.
func TestAPauseReachesAReshardedLimit(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 48, Period: rig.Never}
	small, four := ratelimit.MustDefine("paused", rule), ratelimit.MustDefine("paused", rule, ratelimit.Shards(4))
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool) {
		for _, to := range []int{1, 2, 16} {
			r := small.For(fmt.Sprint(to))
			rig.Take(t, here, four.For(fmt.Sprint(to)))
			rig.Take(t, there, r)
			reshard(t, pool, clock.Now, to, r)
			rig.Take(t, here, r)
			if err := there.Pause(t.Context(), time.Hour, r); err != nil {
				t.Fatal(err)
			}
			for who, v := range map[string]rig.Verbs{"here": here, "there": there} {
				if res, err := v.RateLimit(t.Context(), r); err != nil || res.OK ||
					!res.RetryAt.Equal(clock.Now().Add(time.Hour)) {
					t.Errorf("%d shards, %s, in a pause: %v, retry at %v, %v", to, who, res.OK, res.RetryAt, err)
				}
			}
			reshard(t, pool, clock.Now, 8, r)
			if res, err := here.CheckRateLimit(t.Context(), r); err != nil || res.OK ||
				!res.RetryAt.Equal(clock.Now().Add(time.Hour)) {
				t.Errorf("%d shards: a reshard has ended the pause: %v, retry at %v, %v", to, res.OK, res.RetryAt, err)
			}
			reshard(t, pool, clock.Now, to, r)
			if err := there.Resume(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			for _, v := range []rig.Verbs{here, there} {
				rig.Take(t, v, r)
			}
			wantLeft(t, here, r, 43)
		}
	})
}

// A denial that was expected is looked at before the transaction and in it. In the row that a limit
// has left for its shards anything may stand: it has not changed by being no number.
func TestAClosedBalanceThatIsNoNumberIsDeniedInOneAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	here, there := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{})
	rule := ratelimit.TokenBucket{Rate: 10, Period: rig.Never}
	one, many := ratelimit.MustDefine("closed", rule), ratelimit.MustDefine("closed", rule, ratelimit.Shards(3))
	takeOK(t, first(here.Autocommit(pool).RateLimit(t.Context(), one.Global().Count(10))))
	deny := func() (attempts int) {
		t.Helper()
		err := here.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			attempts++
			res, err := here.RateLimit(ctx, tx, one.Global())
			if err == nil && res.OK {
				err = errors.New("granted what is used up")
			}
			if err == nil {
				_, err = tx.Exec(ctx, `SELECT 1`)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return attempts
	}
	deny() // from now on it is expected
	if res, err := there.Autocommit(pool).RateLimit(t.Context(), many.Global()); err != nil || res.OK {
		t.Fatal(res.OK, err)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE weir_balance SET moved = 'NaN' WHERE value = '-Infinity'`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n := deny(); n != 1 {
			t.Errorf("%d attempts", n)
		}
	}
}

// A row that was closed knows nothing of the pauses of its limit, and so not what tokens are of the
// present window: what comes back to it is given to the limit nevertheless.
func TestWhatComesBackToAClosedRowIsNotLostForAPause(t *testing.T) {
	t.Parallel()
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool) {
		pause := func(r ratelimit.Request) {
			t.Helper()
			if err := here.Pause(t.Context(), 130*time.Second, r); err != nil {
				t.Fatal(err)
			}
			clock.Add(100 * time.Second)
		}
		for _, from := range []int{1, 2} {
			for _, ahead := range []bool{false, true} {
				for _, earlier := range []bool{false, true} { // than the take; else after the change of layout
					name := fmt.Sprint("paused", from, ahead, earlier)
					rule := ratelimit.FixedWindow{Rate: 20, Period: time.Minute, Start: clock.Now()}
					r := ratelimit.MustDefine(name, rule, ratelimit.Shards(from)).For("k")
					rig.Take(t, here, r.Count(0))
					if earlier {
						pause(r)
						clock.Add(30 * time.Second)
					}
					want := 12.0
					if ahead {
						rig.Take(t, here, r.Count(16))
						want = -4
					}
					res := takeOK(t, first(here.RateLimit(t.Context(), r.Count(20).OrReserve())))
					reshard(t, pool, clock.Now, 4, r)
					if !earlier {
						pause(r)
					}
					if ok, err := there.Settle(t.Context(), res.Reservation(), r.Count(8)); err != nil || !ok {
						t.Fatal(ok, err)
					}
					wantLeft(t, there, r, want)
				}
			}
		}
	})
}

// What was taken comes back wholly, whatever has been reserved, released and resharded in between:
// a row has room for all that was taken from it.
func TestNothingIsLostOfWhatComesBackToShards(t *testing.T) {
	t.Parallel()
	const all = 400
	rule := ratelimit.TokenBucket{Rate: all, Period: rig.Century}
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool) {
		limit := ratelimit.MustDefine("back", rule, ratelimit.Shards(4))
		zero := func(r ratelimit.Request) ratelimit.Request { return r.Count(0) }
		for name, end := range map[string]func(r ratelimit.Request, res ratelimit.Result) error{
			"give back": func(_ ratelimit.Request, res ratelimit.Result) error {
				return there.GiveBack(t.Context(), res)
			},
			"release": func(_ ratelimit.Request, res ratelimit.Result) error {
				_, err := there.Release(t.Context(), res.Reservation())
				return err
			},
			"settle": func(r ratelimit.Request, res ratelimit.Result) error {
				_, err := there.Settle(t.Context(), res.Reservation(), zero(r))
				return err
			},
		} {
			for _, layouts := range [][]int{nil, {7, 4}, {1, 4}, {16}, {3, 8, 2}} {
				r := limit.For(fmt.Sprint(name, layouts))
				one := takeOK(t, first(here.RateLimit(t.Context(), r.Count(100))))
				two := takeOK(t, first(here.RateLimit(t.Context(), r.Count(350).OrReserve())))
				if _, err := here.Release(t.Context(), two.Reservation()); err != nil {
					t.Fatal(err)
				}
				for _, n := range layouts {
					reshard(t, pool, clock.Now, n, r)
				}
				wantLeft(t, there, r, all-100)
				if err := end(r, one); err != nil {
					t.Fatal(name, err)
				}
				wantLeft(t, here, r, all)
			}
		}
	})
}

// What was used beyond a reservation from before a change of shards is charged to shards that have
// it, as at any other time.
func TestAnExcessAfterAChangeOfShardsIsChargedToThoseThatHaveIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	v := l.Autocommit(pool)
	r := ratelimit.MustDefine("excessive", ratelimit.TokenBucket{Rate: 100, Period: rig.Century}).For("k")
	res := takeOK(t, first(v.RateLimit(t.Context(), r.Count(10))))
	reshard(t, pool, nil, 4, r)
	const empty = `UPDATE weir_balance SET value = 0 WHERE shard = (SELECT max(shard) FROM weir_balance)`
	rig.Exec(t, pool, empty)
	if ok, err := v.Settle(t.Context(), res.Reservation(), r.Count(30)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	var least float64
	if err := pool.QueryRow(t.Context(), `SELECT min(value) FROM weir_balance WHERE value > '-Infinity' AND shard > 0`).Scan(&least); err != nil {
		t.Fatal(err)
	}
	if least < -1e-6 {
		t.Errorf("a shard owes %v, while others have tokens", -least)
	}
	wantLeft(t, v, r, 90-22.5-20)
}
