package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// What is remembered is answered without the database: here it is closed.
func TestADenialIsRememberedUntilItsTokensCome(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	clock := rig.Clock()
	v := rig.Limiter(t, ratelimit.Config{RememberDenials: true, Clock: clock.Now}).Autocommit(pool)
	for _, shards := range []int{1, 3} {
		limit := ratelimit.MustDefine(map[int]string{1: "one", 3: "three"}[shards],
			ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second}, ratelimit.Shards(shards))
		take := func(want bool, r ratelimit.Request) ratelimit.Result {
			t.Helper()
			res, err := v.RateLimit(t.Context(), r)
			if err != nil || res.OK != want {
				t.Fatalf("%d shards: got %+v and %v, want granted %v", shards, res, err, want)
			}
			return res
		}
		take(true, limit.For("k").Count(10))
		denied := take(false, limit.For("k").Count(5))
		if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO away`); err != nil {
			t.Fatal(err)
		}
		clock.Add(time.Second)
		again := take(false, limit.For("k").Count(5))
		if !again.RetryAt.Equal(denied.RetryAt) || again.At.Sub(denied.At) != time.Second ||
			again.Limit != denied.Limit ||
			again.Key != "k" || again.Outcomes[0].Value != denied.Outcomes[0].Value+1 {
			t.Errorf("%+v after %+v", again, denied)
		}
		for what, r := range map[string]ratelimit.Request{
			"count": limit.For("k").Count(6), "key": limit.For("other").Count(5),
			"reserve": limit.For("k").Count(5).OrReserve(),
			"rule":    limit.For("k").Count(5).Rule(ratelimit.TokenBucket{Rate: 11, Period: 10 * time.Second}),
		} {
			if res, err := v.RateLimit(t.Context(), r); err == nil {
				t.Errorf("another %s: answered from memory: %+v", what, res)
			}
		}
		if res, err := v.CheckRateLimit(t.Context(), limit.For("k").Count(5)); err == nil {
			t.Errorf("a check was answered from memory: %+v", res)
		}
		if _, err := pool.Exec(t.Context(), `ALTER TABLE away RENAME TO weir_balance`); err != nil {
			t.Fatal(err)
		}
		clock.Add(denied.RetryAt.Sub(clock.Now()))
		take(true, limit.For("k").Count(5))
	}
}

// A reset by the same limiter ends it at once, one elsewhere does not: that is what it costs.
func TestAResetElsewhereIsNotSeenByWhoRemembers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	mine := rig.Limiter(t, ratelimit.Config{RememberDenials: true}).Autocommit(pool)
	other := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	for range 2 {
		if _, err := mine.RateLimit(t.Context(), limit.For("k")); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.ResetRateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	if res, err := mine.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if err := mine.ResetRateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	if res, err := mine.RateLimit(t.Context(), limit.For("k")); err != nil || !res.OK {
		t.Errorf("after its own reset: %+v, %v", res, err)
	}
}

// What a transaction is denied because of what it has taken itself is no denial for others, who
// come after it has rolled back.
func TestADenialIsNotRememberedByWhatHasRolledBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	l := rig.Limiter(t, ratelimit.Config{RememberDenials: true})
	take := func(f func(ratelimit.Request) (ratelimit.Result, error), r ratelimit.Request) error {
		for _, want := range []bool{true, false, false} { // 6 of 10, and not another 6
			if res, err := f(r); err != nil || res.OK != want {
				t.Errorf("%+v, %v, want granted %v", res, err, want)
			}
		}
		return errUndo
	}
	for begun, within := range map[string]func(ratelimit.Request) error{
		"InTx": func(r ratelimit.Request) error {
			return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				return take(func(r ratelimit.Request) (ratelimit.Result, error) { return l.RateLimit(ctx, tx, r) }, r)
			})
		},
		"by hand": func(r ratelimit.Request) error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				return take(func(r ratelimit.Request) (ratelimit.Result, error) {
					return l.RateLimit(t.Context(), tx, r)
				}, r)
			})
		},
		"database/sql": func(r ratelimit.Request) error {
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
			if err != nil {
				return err
			}
			err = take(func(r ratelimit.Request) (ratelimit.Result, error) {
				return l.InSQL(tx).RateLimit(t.Context(), r)
			}, r)
			return errors.Join(err, tx.Rollback())
		},
	} {
		for _, shards := range []int{1, 3} {
			limit := ratelimit.MustDefine(fmt.Sprint(begun, shards),
				ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(shards))
			v := l.Autocommit(pool)
			if _, err := v.RateLimit(t.Context(), limit.For("k").Count(0)); err != nil {
				t.Fatal(err)
			}
			if err := within(limit.For("k").Count(6)); !errors.Is(err, errUndo) {
				t.Fatal(err)
			}
			if res, err := v.RateLimit(t.Context(), limit.For("k").Count(6)); err != nil || !res.OK {
				t.Errorf("%s, %d shards: %+v, %v, want it granted: all is there again", begun, shards, res, err)
			}
		}
	}
}

// Who looks while a reset is not committed yet is denied as before; that is not remembered either.
func TestADenialIsNotRememberedBeyondAResetInATransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{RememberDenials: true})
	v := l.Autocommit(pool)
	for what, reset := range map[string]func(context.Context, pgx.Tx, ratelimit.Request) error{
		"a limit": func(ctx context.Context, tx pgx.Tx, r ratelimit.Request) error {
			return l.ResetRateLimit(ctx, tx, r)
		},
		"a key": func(ctx context.Context, tx pgx.Tx, r ratelimit.Request) error {
			return l.ResetKey(ctx, tx, r.Key())
		},
	} {
		limit := ratelimit.MustDefine(what, ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
		take := func(want bool) {
			t.Helper()
			if res, err := v.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK != want {
				t.Errorf("reset of %s: %+v, %v, want granted %v", what, res, err, want)
			}
		}
		take(true)
		take(false)
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := reset(ctx, tx, limit.For("k")); err != nil {
				return err
			}
			if res, err := l.CheckRateLimit(ctx, tx, limit.For("k")); err != nil || !res.OK {
				t.Errorf("%+v, %v, want what the transaction has done", res, err)
			}
			if res, err := v.CheckRateLimit(t.Context(), limit.For("k")); err != nil || res.OK {
				t.Errorf("%+v, %v, want what is committed", res, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		take(true)
	}
}

// What a transaction reads in a snapshot from before a reset, a settlement or the end of a pause is
// not remembered after it.
func TestADenialOfAnOldSnapshotIsNotRemembered(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	l := rig.Limiter(t, ratelimit.Config{RememberDenials: true})
	v := l.Autocommit(pool)
	type check func(context.Context, ratelimit.Request) (ratelimit.Result, error)
	const old = `SELECT count(*) FROM weir_balance` // takes the snapshot
	within := func(level pgx.TxIsoLevel) func(func(check)) error {
		return func(fn func(check)) error {
			return l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
				func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, old)
					fn(func(ctx context.Context, r ratelimit.Request) (ratelimit.Result, error) {
						return l.CheckRateLimit(ctx, tx, r)
					})
					return err
				})
		}
	}
	for begun, within := range map[string]func(func(check)) error{
		"InTx":                 within(pgx.Serializable),
		"InTx REPEATABLE READ": within(pgx.RepeatableRead),
		"InTx READ COMMITTED":  within(pgx.ReadCommitted),
		"by hand": func(fn func(check)) error {
			return pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead},
				func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), old)
					fn(func(ctx context.Context, r ratelimit.Request) (ratelimit.Result, error) {
						return l.CheckRateLimit(ctx, tx, r)
					})
					return err
				})
		},
		"database/sql": func(fn func(check)) error {
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(t.Context(), old)
			fn(func(ctx context.Context, r ratelimit.Request) (ratelimit.Result, error) {
				return l.InSQL(tx).CheckRateLimit(ctx, r)
			})
			return errors.Join(err, tx.Commit())
		},
	} {
		for _, shards := range []int{1, 3} {
			limit := ratelimit.MustDefine(fmt.Sprint(begun, shards),
				ratelimit.TokenBucket{Rate: 6, Period: rig.Never}, ratelimit.Shards(shards))
			for what, change := range map[string]func(ratelimit.Request, ratelimit.Result) error{
				"reset": func(r ratelimit.Request, _ ratelimit.Result) error {
					return v.ResetRateLimit(t.Context(), r)
				},
				"reset key": func(r ratelimit.Request, _ ratelimit.Result) error {
					return v.ResetKey(t.Context(), r.Key())
				},
				"give back": func(_ ratelimit.Request, res ratelimit.Result) error {
					return v.GiveBack(t.Context(), res)
				},
				"settle": func(r ratelimit.Request, res ratelimit.Result) error {
					_, err := v.Settle(t.Context(), res.Reservation(), r.Count(0))
					return err
				},
				"release": func(_ ratelimit.Request, res ratelimit.Result) error {
					_, err := v.Release(t.Context(), res.Reservation())
					return err
				},
				"resume": func(r ratelimit.Request, _ ratelimit.Result) error {
					return errors.Join(v.Resume(t.Context(), r), v.ResetRateLimit(t.Context(), r))
				},
			} {
				r := limit.For(what).Count(6)
				res := takeOK(t, first(v.RateLimit(t.Context(), r)))
				if what == "resume" {
					if err := v.Pause(t.Context(), time.Hour, r); err != nil {
						t.Fatal(err)
					}
				}
				err := within(func(check check) {
					if err := change(r, res); err != nil {
						t.Error(err)
					}
					if _, err := check(t.Context(), r); err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if res, err := v.RateLimit(t.Context(), r); err != nil || !res.OK {
					t.Errorf("%s, %d shards, %s: %+v, %v, want it granted", begun, shards, what, res, err)
				}
			}
		}
	}
}

// A denial that was read before a pause ended may arrive after it. It is not remembered then.
func TestADenialThatArrivesAfterAResumeIsNotRemembered(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{RememberDenials: true})
	v, c := l.Autocommit(pool), l.Coalesce(pool)
	defer c.Close()
	limit := ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	for i := range 100 {
		r := limit.For(fmt.Sprint(i)).Count(0) // so that a grant changes nothing
		if err := v.Pause(t.Context(), time.Hour, r); err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for _, take := range []func(context.Context, ...ratelimit.Request) (ratelimit.Result, error){v.RateLimit, v.CheckRateLimit, c.RateLimit} {
			callers.Go(func() {
				if _, err := take(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		if err := v.Resume(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		callers.Wait()
		if res, err := v.RateLimit(t.Context(), r); err != nil || !res.OK {
			t.Fatalf("round %d: %+v, %v, want it granted: the pause is over", i, res, err)
		}
	}
}

// A denial from memory does not tell whether the database is there again, nor does a shadow that
// could not be asked: neither ends an outage, of which the bounds would begin anew.
func TestAnOutageIsNotEndedByMemory(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	shadow := ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 1, Period: rig.Never}, ratelimit.Shadow())
	c := rig.Limiter(t, ratelimit.Config{RememberDenials: true}).Coalesce(pool)
	defer c.Close()
	f := &ratelimit.FailOpen{Limiter: c, Most: 1, For: 100 * time.Millisecond, Timeout: hung, Logger: silent}
	for range 2 {
		for _, l := range []ratelimit.Limit{limit, shadow} {
			if _, err := f.RateLimit(t.Context(), l.For("greedy")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	for i, r := range []ratelimit.Request{limit.For("greedy"), shadow.For("greedy"), shadow.For("other")} {
		res, err := f.RateLimit(t.Context(), limit.For("other"))
		if res.OK != (i == 0) || (err == nil) != res.OK || f.Opened() != 1 {
			t.Errorf("%+v, %v: %d were let through of 1", res, err, f.Opened())
		}
		for range 2 { // for longer than For, after which the bounds would begin anew
			if _, err := f.RateLimit(t.Context(), r); err != nil {
				t.Error(r, err)
			}
			time.Sleep(f.For)
		}
	}
	if _, err := f.RateLimit(t.Context(), limit.For("other")); err == nil || f.Opened() != 1 {
		t.Errorf("%v: %d were let through of 1", err, f.Opened())
	}
	if _, err := pool.Exec(t.Context(), `ALTER TABLE away RENAME TO weir_balance`); err != nil {
		t.Fatal(err)
	}
	if res, err := f.RateLimit(t.Context(), limit.For("other")); err != nil || !res.OK {
		t.Error(res, err)
	}
}

// BenchmarkDenyRemembered is a call that is denied from memory.
func BenchmarkDenyRemembered(b *testing.B) {
	pool, l := pgtest.Pool(b), rig.Limiter(b, ratelimit.Config{RememberDenials: true})
	limit := ratelimit.MustDefine("bench", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	if _, err := l.Autocommit(pool).RateLimit(b.Context(), limit.For("k")); err != nil {
		b.Fatal(err)
	}
	take := map[string]func() (ratelimit.Result, error){
		"alone": func() (ratelimit.Result, error) { return l.Autocommit(pool).RateLimit(b.Context(), limit.For("k")) },
		"InTx": func() (res ratelimit.Result, err error) {
			err = l.InTx(b.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				res, err = l.RateLimit(ctx, tx, limit.For("k"))
				return err
			})
			return res, err
		},
	}
	for name, take := range take {
		b.Run(name, func(b *testing.B) {
			if _, err := take(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if res, err := take(); err != nil || res.OK {
					b.Fatal(res, err)
				}
			}
		})
	}
}
