package integration

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A transaction of the caller's own takes from limits with shards behind a savepoint. Each has a transaction id and a lock of its
// own, so few of them are open at the same time, and a key that was taken from before needs none.
func TestSavepointsOfShardsAreReleased(t *testing.T) {
	t.Parallel()
	const held = `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'transactionid'`
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	l := limiter(t, ratelimit.Config{})
	type take func(ratelimit.Request) (ratelimit.Result, error)
	for begun, within := range map[string]func(func(take) error) (ids int, err error){
		"pgx": func(fn func(take) error) (ids int, err error) {
			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				if err := fn(func(r ratelimit.Request) (ratelimit.Result, error) { return l.RateLimit(t.Context(), tx, r) }); err != nil {
					return err
				}
				return tx.QueryRow(t.Context(), held).Scan(&ids)
			})
			return ids, err
		},
		"database/sql": func(fn func(take) error) (ids int, err error) {
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
			if err != nil {
				return 0, err
			}
			defer func() { _ = tx.Rollback() }()
			if err := fn(func(r ratelimit.Request) (ratelimit.Result, error) { return l.SQL().RateLimit(t.Context(), tx, r) }); err != nil {
				return 0, err
			}
			err = tx.QueryRowContext(context.Background(), held).Scan(&ids)
			return ids, err
		},
	} {
		limit := ratelimit.MustDefine("shards "+begun, ratelimit.TokenBucket{Rate: 4000, Period: never}, ratelimit.Shards(4))
		for i := range 100 {
			takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.For(fmt.Sprint(i)))))
		}
		for what, tc := range map[string]struct {
			request func(i int) ratelimit.Request
			most    int
			denied  bool
		}{
			"one key":   {func(int) ratelimit.Request { return limit.For("0") }, 5, false},
			"many keys": {func(i int) ratelimit.Request { return limit.For(fmt.Sprint(i)) }, 40, false},
			"denials":   {func(i int) ratelimit.Request { return limit.For(fmt.Sprint(i)).Count(4000) }, 4, true},
		} {
			ids, err := within(func(take take) error {
				for i := range 100 {
					if res, err := take(tc.request(i)); err != nil || res.OK == tc.denied {
						return fmt.Errorf("%d: %+v, %w", i, res, err)
					}
				}
				return nil
			})
			most := tc.most
			if begun == "database/sql" && !tc.denied { // which does not tell connections apart, so that each take may go to another shard
				most = 40
			}
			if err != nil || ids > most {
				t.Errorf("%s, %s: %d transaction ids held, %v, want %d at the most", begun, what, ids, err, most)
			} else {
				t.Logf("%s, %s: %d transaction ids held", begun, what, ids)
			}
		}
	}
}

// A savepoint of the caller's may be rolled back, and with it what Weir has taken behind its own. Then the next take is guarded and
// counts as any other.
func TestTakesOfShardsBesideTheCallersSavepoints(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("shards", ratelimit.TokenBucket{Rate: 40, Period: never}, ratelimit.Shards(4))
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		exec := func(sql string) {
			t.Helper()
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			exec(`SAVEPOINT mine`)
			for range 3 {
				takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("k").Count(10))))
			}
			exec(`ROLLBACK TO SAVEPOINT mine`)
			takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("k"))))
			exec(`RELEASE SAVEPOINT mine`)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), limit.For("k")); err != nil || s.Value < 36.99 || s.Value > 37.01 {
		t.Errorf("%v left, %v, want 37 of 40", s.Value, err)
	}
}
