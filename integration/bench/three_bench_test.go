package bench

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

var (
	alsoConsumed = ratelimit.MustDefine("chatTokens",
		ratelimit.TokenBucket{Rate: 40e6, Period: time.Minute, Capacity: ratelimit.Tokens(10e6)})
	windowed = ratelimit.MustDefine("partnerAPI", ratelimit.FixedWindow{Rate: 1e6, Period: time.Minute})
)

// BenchmarkThreeLimits takes from three limits of different rules in one call, all or none, against
// a call for one of them: by InTx, each limit with 100,000 keys. x-one is the base's time by ours.
func BenchmarkThreeLimits(b *testing.B) { threeLimits(b, loopback) }

// BenchmarkThreeLimitsFar is the same with a network between.
func BenchmarkThreeLimitsFar(b *testing.B) {
	b.Run("network", func(b *testing.B) { threeLimits(b, network) })
}

func threeLimits(b *testing.B, roundTrip time.Duration) {
	l := newLone(b, roundTrip)
	fill(b, l.pool, "sendMessage", manyKeys, ample, "NULL")
	fill(b, l.pool, "chatTokens", manyKeys, ample, "NULL")
	fill(b, l.pool, "partnerAPI", manyKeys, ample, "clock_timestamp()")
	rig.Exec(b, l.pool, `VACUUM ANALYZE weir_balance`)
	l.compare(b, "x-one", l.takeOf(consumed), l.takeThree)
}

func (l *lone) takeThree(ctx context.Context, conn *pgxpool.Conn, n int) error {
	return l.limiter.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
		k := key(n)
		return rig.Granted(l.limiter.RateLimit(ctx, tx, windowed.For(k), consumed.For(k), alsoConsumed.For(k)))
	})
}
