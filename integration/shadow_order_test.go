package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A call takes from its shadows last. So everything locks the rows of shadows after all others, also
// if their names come first: who did not would wait in a circle with the call.
func TestTheRowsOfShadowsAreLockedLast(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	rule := ratelimit.TokenBucket{Rate: 40, Period: rig.Never}
	enforced := ratelimit.MustDefine("chat", rule).For("k")
	shadow := ratelimit.MustDefine("api", rule, ratelimit.Shadow()).For("k")
	sharded := ratelimit.MustDefine("bot", rule, ratelimit.Shadow(), ratelimit.Shards(2)).For("k")
	for _, portable := range []bool{false, true} {
		l := rig.Limiter(t, ratelimit.Config{Portable: portable})
		var taken ratelimit.Result
		for name, c := range map[string]struct {
			first, second string // rows, in the order in which a call locks them
			verb          func(context.Context, pgx.Tx) error
		}{
			"GiveBack": {"chat", "api (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				return l.GiveBack(ctx, tx, taken)
			}},
			"GiveBackMany": {"chat", "api (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				return l.GiveBackMany(ctx, tx, []ratelimit.Result{taken})
			}},
			"ResetRateLimit": {"chat", "api (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				return l.ResetRateLimit(ctx, tx, shadow, enforced)
			}},
			"ResetKey": {"chat", "api (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				return l.ResetKey(ctx, tx, "k")
			}},
			"Pause": {"chat", "api (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				return l.Pause(ctx, tx, time.Hour, shadow, enforced)
			}},
			"Resume": {"chat", "api (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				return l.Resume(ctx, tx, shadow, enforced)
			}},
			"RateLimitMany": {"api (shadow)", "bot (shadow)", func(ctx context.Context, tx pgx.Tx) error {
				_, _, err := l.RateLimitMany(ctx, tx, [][]ratelimit.Request{{sharded, shadow}, {enforced}})
				return err
			}},
		} {
			pool := pgtest.Pool(t)
			taken = takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), enforced, shadow, sharded)))
			other := rig.Begin(t, pool, pgx.ReadCommitted)
			lock := func(row string) {
				t.Helper()
				if _, err := other.Exec(t.Context(), `SELECT FROM weir_balance WHERE name = $1 FOR UPDATE`, row); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			lock(c.first)
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			done := waiting(t, pool, tx, func() (ratelimit.Result, error) {
				defer func() { _ = tx.Commit(context.Background()) }()
				return ratelimit.Result{}, c.verb(context.Background(), tx)
			})
			lock(c.second)
			rig.Commit(t, other)
			if got := <-done; got.err != nil {
				t.Errorf("%s: %v", name, got.err)
			}
		}
	}
}
