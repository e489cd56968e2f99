package integration

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A savepoint of the caller's may be rolled back, and with it what Weir has taken behind it.
func TestTakesOfShardsBesideTheCallersSavepoints(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("shards", ratelimit.TokenBucket{Rate: 40, Period: rig.Never}, ratelimit.Shards(4))
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
	if s, err := l.Autocommit(pool).Value(t.Context(), limit.For("k")); err != nil ||
		s.Value < 36.99 || s.Value > 37.01 {
		t.Errorf("%v left, %v, want 37 of 40", s.Value, err)
	}
}
