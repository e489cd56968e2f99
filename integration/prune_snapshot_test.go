package integration

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A transaction above READ COMMITTED still sees a balance that was pruned after it had taken its
// snapshot, beside the row that it inserts in its place. Then it runs again.
func TestABalanceIsPrunedAfterTheSnapshot(t *testing.T) {
	t.Parallel()
	// now has a transaction read something, and calls in it
	type now func(ctx context.Context, v ratelimit.Verbs, takes func() (ratelimit.Result, error)) error
	levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	ways := map[string]func(ctx context.Context, s snapshot, level int, now now) error{
		"InTx": func(ctx context.Context, s snapshot, level int, now now) error {
			opts := pgx.TxOptions{IsoLevel: rig.Levels[level]}
			return s.l.InTxOptions(ctx, s.pool, opts, func(ctx context.Context, tx pgx.Tx) error {
				v := s.l.In(tx)
				return now(ctx, v, func() (ratelimit.Result, error) { return v.RateLimit(ctx, s.key) })
			})
		},
		"RateLimitMany": func(ctx context.Context, s snapshot, level int, now now) error {
			opts := pgx.TxOptions{IsoLevel: rig.Levels[level]}
			return s.l.InTxOptions(ctx, s.pool, opts, func(ctx context.Context, tx pgx.Tx) error {
				return now(ctx, s.l.In(tx), func() (ratelimit.Result, error) {
					res, _, err := s.l.RateLimitMany(ctx, tx, [][]ratelimit.Request{{s.key}})
					return res, err
				})
			})
		},
		"InSQLTx": func(ctx context.Context, s snapshot, level int, now now) error {
			db := stdlib.OpenDBFromPool(s.pool)
			defer func() { _ = db.Close() }()
			opts := &sql.TxOptions{Isolation: levels[level]}
			return s.l.InSQLTx(ctx, db, opts, func(ctx context.Context, tx *sql.Tx) error {
				v := s.l.InSQL(tx)
				return now(ctx, v, func() (ratelimit.Result, error) { return v.RateLimit(ctx, s.key) })
			})
		},
	}
	for name, way := range ways {
		for level, of := range rig.Levels {
			for _, shards := range []int{1, 4} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, of, shards), func(t *testing.T) {
					t.Parallel()
					s := newSnapshot(t, shards)
					runs := 0
					err := way(t.Context(), s, level, func(ctx context.Context, v ratelimit.Verbs, take func() (ratelimit.Result, error)) error {
						if _, err := v.Value(ctx, s.other); err != nil { // the transaction has its snapshot
							return err
						}
						if runs++; runs == 1 {
							s.prune(t)
						}
						return s.takes(t, ctx, v, take)
					})
					if err != nil {
						t.Errorf("after %d runs: %v", runs, err)
					}
				})
			}
		}
	}
}

// snapshot is a limit of 8 with an idle balance.
type snapshot struct {
	l          *ratelimit.Limiter
	pool       *pgxpool.Pool
	key, other ratelimit.Request
}

func newSnapshot(t *testing.T, shards int) snapshot {
	t.Helper()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	limit := ratelimit.MustDefine("snapshot", ratelimit.FixedWindow{Rate: 8, Period: time.Minute}, ratelimit.Shards(shards))
	s := snapshot{l, pool, limit.For("k"), limit.For("other")}
	rig.Take(t, l.Autocommit(pool), s.key)
	clock.Add(10 * time.Minute)
	return s
}

func (s *snapshot) prune(t *testing.T) {
	t.Helper()
	if done, err := s.l.Prune(t.Context(), s.pool, ratelimit.PruneConfig{}); err != nil || done.Deleted == 0 {
		t.Errorf("%+v, %v: want some rows deleted", done, err)
	}
}

// takes takes all there is, and one more.
func (s *snapshot) takes(t *testing.T, ctx context.Context, v ratelimit.Verbs, take func() (ratelimit.Result, error)) error {
	t.Helper()
	for left := 7; left >= -1; left-- {
		res, err := take()
		if err != nil {
			return err
		}
		if res.OK != (left >= 0) {
			t.Errorf("with %d of 8 left: %+v", left+1, res)
		}
		state, err := v.Value(ctx, s.key)
		if err != nil {
			return err
		}
		if want := float64(max(0, left)); state.Value != want {
			t.Errorf("%v are left, want %v", state.Value, want)
		}
	}
	return nil
}
