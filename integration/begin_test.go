package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestBeginTakesNoTripOfItsOwn(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	full := ratelimit.MustDefine("full", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}).For("k")
	other := ratelimit.MustDefine("other", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}).For("k")
	empty := ratelimit.MustDefine("empty", ratelimit.TokenBucket{Rate: 1, Period: rig.Never}).For("k")
	for _, mode := range modes {
		t.Run(strings.ReplaceAll(mode.String(), " ", ""), func(t *testing.T) {
			t.Parallel()
			var count trips
			pool := pgtest.Pool(t, count.through, func(c *pgxpool.Config) {
				c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 1, mode
			})
			l := rig.Limiter(t, ratelimit.Config{})
			rig.Take(t, l.Autocommit(pool), empty)
			exec := func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT`)
				return err
			}
			rateLimit := func(ctx context.Context, tx pgx.Tx, r ...ratelimit.Request) error {
				res, err := l.RateLimit(ctx, tx, r...)
				if err != nil {
					return err
				}
				return res.Err()
			}
			// in this mode each batch, and each statement of one, is described in a trip of its own
			describe := int64(0)
			if mode == pgx.QueryExecModeDescribeExec {
				describe = 1
			}
			for name, c := range map[string]struct {
				fn   func(ctx context.Context, tx pgx.Tx) error
				want int64
			}{
				"Nothing": {func(context.Context, pgx.Tx) error { return nil }, 0},
				"Take":    {func(ctx context.Context, tx pgx.Tx) error { return rateLimit(ctx, tx, full) }, 2 + describe},
				"TakeTwo": {func(ctx context.Context, tx pgx.Tx) error { return rateLimit(ctx, tx, full, other) }, 2 + describe},
				// as expected
				"Denied": {func(ctx context.Context, tx pgx.Tx) error { return rateLimit(ctx, tx, empty) }, 1 + describe},
				"Value": {func(ctx context.Context, tx pgx.Tx) error {
					_, err := l.Value(ctx, tx, full)
					return err
				}, 2 + describe},
				"TakeAndExec": {func(ctx context.Context, tx pgx.Tx) error {
					return errors.Join(rateLimit(ctx, tx, full), exec(ctx, tx))
				}, 3 + describe},
				"ExecAndTake": {func(ctx context.Context, tx pgx.Tx) error {
					return errors.Join(exec(ctx, tx), rateLimit(ctx, tx, full))
				}, 4 + describe},
				"TakeInSavepoint": {func(ctx context.Context, tx pgx.Tx) error {
					return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return rateLimit(ctx, tx, full) })
				}, 5 + describe},
				"TakeAndSavepoint": {func(ctx context.Context, tx pgx.Tx) error { // as many as before: see lazyTx.real
					return errors.Join(rateLimit(ctx, tx, full), pgx.BeginFunc(ctx, tx, func(pgx.Tx) error {
						return nil
					}))
				}, 5 + describe},
			} {
				run := func() {
					if err := l.InTx(t.Context(), pool, c.fn); err != nil &&
						(name != "Denied" || !errors.Is(err, ratelimit.ErrDenied)) {
						t.Errorf("%s: %v", name, err)
					}
				}
				run() // prepares
				run()
				if got := count.of(run); got != c.want {
					t.Errorf("%s took %d trips, want %d", name, got, c.want)
				}
			}
			for _, requests := range [][]ratelimit.Request{{full}, {full, other}} {
				run := func() { takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), requests...))) }
				run()
				got := count.of(run)
				if want := int64(len(requests)) + describe; got != want {
					t.Errorf("autocommit of %d took %d trips, want %d", len(requests), got, want)
				}
			}
		})
	}
}

// A transaction that runs again queues first: in the same trip.
func TestTheLockOfARetryTakesNoTripOfItsOwn(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	for name, want := range map[string]int64{"TakeFirst": 2, "ExecFirst": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var count trips
			pool := pgtest.Pool(t, count.through, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			})
			l := rig.Limiter(t, ratelimit.Config{})
			rig.Take(t, l.Autocommit(pool), k)
			runs, before := 0, int64(0)
			err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				before = count.n.Load()
				if runs++; runs == 1 || name == "ExecFirst" {
					if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
						return err
					}
				}
				if runs == 1 {
					rig.Take(t, l.Autocommit(pool), k)
				}
				_, err := l.RateLimit(ctx, tx, k)
				return err
			})
			if got := count.n.Load() - before; err != nil || runs != 2 || got != want {
				t.Errorf("%d runs, the last of %d trips, then %v; want 2, of %d", runs, got, err, want)
			}
		})
	}
}

// firstUses are all ways to use a transaction. Each writes a row.
var firstUses = map[string]func(ctx context.Context, tx pgx.Tx) error{
	"Exec": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO done VALUES (1)`)
		return err
	},
	"Query": func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `INSERT INTO done VALUES ($1) RETURNING n`, 1)
		if err != nil {
			return err
		}
		_, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		return err
	},
	"QueryRow": func(ctx context.Context, tx pgx.Tx) error {
		var n int
		return tx.QueryRow(ctx, `INSERT INTO done VALUES ($1) RETURNING n`, 1).Scan(&n)
	},
	"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(`INSERT INTO done VALUES ($1)`, 1)
		b.Queue(`SELECT 1`)
		return tx.SendBatch(ctx, &b).Close()
	},
	"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"done"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}}))
		return err
	},
	"Prepare": func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, "mine", `INSERT INTO done VALUES ($1)`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "mine", 1)
		return err
	},
	"Begin": func(ctx context.Context, tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO done VALUES (1)`)
			return err
		})
	},
	"LargeObjects": func(ctx context.Context, tx pgx.Tx) error {
		lo := tx.LargeObjects()
		id, err := lo.Create(ctx, 0)
		if err != nil {
			return err
		}
		o, err := lo.Open(ctx, id, pgx.LargeObjectModeWrite) // valid within one transaction
		if err != nil {
			return err
		}
		if _, err := o.Write([]byte("1")); err != nil {
			return err
		}
		if err := lo.Unlink(ctx, id); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO done VALUES (1)`)
		return err
	},
	"Conn": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, `INSERT INTO done VALUES (1)`)
		return err
	},
}

// plainly hides what it is.
type plainly struct{ ratelimit.Beginner }

func TestATransactionMayBeUsedInAnyWayFirst(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the default level is another one there")
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}).For("k")
	for _, mode := range modes {
		t.Run(strings.ReplaceAll(mode.String(), " ", ""), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
			c, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Release()
			l := rig.Limiter(t, ratelimit.Config{})
			left := 1000.0
			for via, db := range map[string]ratelimit.Beginner{"pool": pool, "conn": c.Conn(), "other": plainly{pool}} {
				for name, use := range firstUses {
					for _, takeFirst := range []bool{false, true} {
						what := fmt.Sprintf("%s of %s, take first %v", name, via, takeFirst)
						oops := errors.New("oops")
						for _, end := range []error{oops, nil} {
							rig.Exec(t, pool, `DELETE FROM done`)
							err := l.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) error {
								if takeFirst {
									takeOK(t, first(l.RateLimit(ctx, tx, k)))
								}
								if err := use(ctx, tx); err != nil {
									t.Errorf("%s: %v", what, err)
								}
								var level string
								if err := tx.QueryRow(ctx, isolation).Scan(&level); err != nil ||
									level != "serializable" {
									t.Errorf("%s: at level %q, %v", what, level, err)
								}
								if !takeFirst {
									takeOK(t, first(l.RateLimit(ctx, tx, k)))
								}
								return end
							})
							var rows, want int
							if end == nil {
								want = 1
								left--
							}
							if err := errors.Join(err, pool.QueryRow(t.Context(),
								`SELECT count(*) FROM done`).Scan(&rows)); !errors.Is(err, end) ||
								rows != want {
								t.Errorf("%s: %d rows, then %v; want %d and %v", what, rows, err, want, end)
							}
						}
					}
				}
			}
			wantValue(t, l, pool, k, left)
		})
	}
}

func TestSavepointsInATransactionThatBeganWithATake(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}).For("k")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		takeOK(t, first(l.RateLimit(ctx, tx, k.Count(1))))
		outer, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		takeOK(t, first(l.RateLimit(ctx, outer, k.Count(2))))
		inner, err := outer.Begin(ctx)
		if err != nil {
			return err
		}
		takeOK(t, first(l.RateLimit(ctx, inner, k.Count(4))))
		if _, err := inner.Exec(ctx, `SELECT 1/0`); err == nil {
			t.Error("no error")
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		takeOK(t, first(l.RateLimit(ctx, outer, k.Count(8))))
		if err := outer.Commit(ctx); err != nil {
			return err
		}
		for name, sp := range map[string]pgx.Tx{"rolled back": inner, "released": outer} {
			if err := errors.Join(sp.Commit(ctx)); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := l.RateLimit(ctx, sp, k); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		again, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		takeOK(t, first(l.RateLimit(ctx, again, k.Count(16))))
		if err := again.Rollback(ctx); err != nil {
			return err
		}
		takeOK(t, first(l.RateLimit(ctx, tx, k.Count(32))))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantValue(t, l, pool, k, 100-1-2-8-32)
}
