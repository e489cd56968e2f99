package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/delay"
	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

const (
	manyKeys = 100_000
	ample    = 100_000 // tokens of a key, more than a benchmark takes

	loopback = time.Duration(0)
	network  = 500 * time.Microsecond // a round trip within a data centre
)

// side is a transaction on a connection, for the key of a random number below manyKeys.
type side func(ctx context.Context, conn *pgxpool.Conn, n int) error

// lone is what a benchmark of one caller runs on: a connection through the network on which it is
// timed, and another on which round trips are counted.
type lone struct {
	limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	timed   *pgxpool.Conn
	counted *pgxpool.Conn
	counter *delay.Proxy
}

func newLone(b *testing.B, roundTrip time.Duration) *lone {
	b.Helper()
	pool := pgtest.Pool(b, quick)
	l := &lone{limiter: rig.Limiter(b, ratelimit.Config{}), pool: pool}
	l.counter = rig.Far(b, pool, 0)
	l.counted = conns(b, rig.Through(b, pool, l.counter), 1)[0]
	if roundTrip > 0 {
		pool = rig.Through(b, pool, rig.Far(b, pool, roundTrip))
	}
	l.timed = conns(b, pool, 1)[0]
	return l
}

// quick lets COMMIT not wait for the disk, whose time would hide all else.
func quick(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" }

// conns takes connections out of a pool for as long as the benchmark runs.
func conns(b *testing.B, pool *pgxpool.Pool, n int) []*pgxpool.Conn {
	b.Helper()
	var all []*pgxpool.Conn
	for range n {
		conn, err := pool.Acquire(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Release)
		all = append(all, conn)
	}
	return all
}

// compare runs both sides in turns, and then counts the round trips of each.
func (l *lone) compare(b *testing.B, metric string, base, ours side) {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	do := func(s side) func(context.Context) error {
		return func(ctx context.Context) error { return s(ctx, l.timed, r.IntN(manyKeys)) }
	}
	pair.Run(b, pair.Sides{Metric: metric, Base: do(base), Ours: do(ours)})
	b.ReportMetric(l.tripsOf(b, r, ours), "roundtrips/op")
	b.ReportMetric(l.tripsOf(b, r, base), "base-roundtrips/op")
}

func (l *lone) tripsOf(b *testing.B, r *rand.Rand, s side) float64 {
	b.Helper()
	const ops = 200
	var before int64
	for i := -1; i < ops; i++ { // the first prepares
		if i == 0 {
			before = l.counter.Trips()
		}
		if err := s(b.Context(), l.counted, r.IntN(manyKeys)); err != nil {
			b.Fatal(err)
		}
	}
	return float64(l.counter.Trips()-before) / ops
}

// fill writes a row for each key of a limit, of numbers below n. They are not those of the
// definition, which come with the first take.
func fill(b *testing.B, pool *pgxpool.Pool, name string, n int, value float64, origin string) {
	b.Helper()
	rig.Exec(b, pool, fmt.Sprintf(`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period, origin)
		SELECT '%s', 'user-' || i, %v, clock_timestamp(), 1, 1, 1e6, %s FROM generate_series(0, %d) i`,
		name, value, origin, n-1))
}

func key(n int) string { return "user-" + strconv.Itoa(n) }

// takeOf is a transaction by InTx that takes from a limit.
func (l *lone) takeOf(limit ratelimit.Limit) side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		return l.limiter.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
			return rig.Granted(l.limiter.RateLimit(ctx, tx, limit.For(key(n))))
		})
	}
}

// denied is a transaction that must be denied, and is rolled back for it.
func denied(s side) side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		err := s(ctx, conn, n)
		if err == nil {
			return errors.New("granted")
		}
		if !errors.Is(err, ratelimit.ErrDenied) {
			return err
		}
		return nil
	}
}
