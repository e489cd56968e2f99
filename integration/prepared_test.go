package integration

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A connection that has lost a prepared statement, which pgx still lists, fails no call that can
// run again, and nothing is taken twice.
func TestAPreparedStatementThatIsLostFailsNoCall(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("prepared", ratelimit.TokenBucket{Rate: 100, Period: rig.Century})
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable}), pool)
			left := 100.0
			take := func() error {
				res, err := v.RateLimit(t.Context(), limit.For("k"))
				if err == nil && !res.OK {
					t.Fatalf("%+v", res)
				}
				if err == nil {
					left--
				}
				return err
			}
			for range 2 {
				if err := take(); err != nil {
					t.Fatal(err)
				}
			}
			rows, err := pool.Query(t.Context(),
				`SELECT name FROM pg_prepared_statements WHERE statement LIKE '%weir%'`, pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				t.Fatal(err)
			}
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil || len(names) == 0 {
				t.Fatal(names, err)
			}
			for _, name := range names {
				rig.Exec(t, pool, forgetWhere(`name = '`+name+`'`)) // pgx may have done so itself, after an error
				err := take()
				if w.Name == "DatabaseSQL" && rig.SQLState(err) == "26000" {
					err = take() // a transaction of the caller's own cannot run again by itself
				}
				if err != nil {
					t.Errorf("%v", err)
				}
			}
			wantLeft(t, v, limit.For("k"), left)
		})
	}
}

// This is how pgx v5.10 loses one: it could not prepare the statement in a transaction that had
// failed, a batch has prepared it since, and another statement is prepared.
func TestAPreparedStatementThatPgxClosesFailsNoCall(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	l := rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("closed", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}).For("k")
	tx := rig.Begin(t, pool, pgx.Serializable)
	if _, err := tx.Exec(t.Context(), `SELECT 1/0`); err == nil {
		t.Fatal("the transaction has not failed")
	}
	if _, err := l.RateLimit(t.Context(), tx, k); rig.SQLState(err) != "25P02" {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := rig.Tx(l, pool, pgx.Serializable)
	takeOK(t, first(v.RateLimit(t.Context(), k)))
	if _, err := pool.Exec(t.Context(), `SELECT $1::text`, "another"); err != nil {
		t.Fatal(err)
	}
	takeOK(t, first(v.RateLimit(t.Context(), k)))
	wantLeft(t, v, k, 98)
}

// Behind a pooler that keeps no prepared statements each attempt fails: InTx says so after a few.
func TestAPreparedStatementThatStaysLostIsToldSo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l, attempts := rig.Limiter(t, ratelimit.Config{}), 0
	ctx, cancel := context.WithTimeout(t.Context(), hung) // until then InTx runs again after a conflict
	defer cancel()
	err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		attempts++
		for range 2 {
			if _, err := tx.Exec(ctx, `SELECT $1::text`, "one"); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `DEALLOCATE ALL`); err != nil {
				return err
			}
		}
		return nil
	})
	if rig.SQLState(err) != "26000" || errors.Is(err, ratelimit.ErrConflict) || attempts != 9 {
		t.Errorf("%d attempts: %v", attempts, err)
	}
}

// forget has a connection lose the prepared statements whose text is like a pattern.
func forget(like string) string { return forgetWhere(`statement LIKE '` + like + `'`) }

// forgetWhere has a connection lose the prepared statements of which a condition holds.
func forgetWhere(condition string) string {
	return `DO $$ DECLARE lost text; BEGIN
		FOR lost IN SELECT name FROM pg_prepared_statements WHERE ` + condition + ` LOOP
			EXECUTE pg_catalog.format('DEALLOCATE %I', lost);
		END LOOP; END $$`
}
