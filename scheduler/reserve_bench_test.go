package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// BenchmarkReserveAndEnqueue is a reservation with its job, by InTx and Jobs.InsertTx, against a
// SERIALIZABLE transaction with nothing but River's InsertTx of the same job: one of 100,000 keys,
// each of which owes tokens, so that every job is scheduled. x-inserttx is the base's time by ours.
//
// Sixteen callers keep the machine busy, so that what counts is the work. A lone caller waits most
// of the time, for trips and for the processes at their ends to wake up, and what the take adds is
// added to that.
func BenchmarkReserveAndEnqueue(b *testing.B) {
	b.Run("sixteen-callers", func(b *testing.B) {
		k := newKeys(b, 16)
		var sides []pair.Sides
		for i := range k.conns {
			sides = append(sides, k.sides(i, k.river, k.reserve))
		}
		pair.Together(b, sides...)
	})
	b.Run("lone-caller", func(b *testing.B) {
		k := newKeys(b, 1)
		pair.Run(b, k.sides(0, k.river, k.reserve))
	})
}

// BenchmarkReserveAndEnqueueParts tells where a lone caller's time goes, by the same ratio.
func BenchmarkReserveAndEnqueueParts(b *testing.B) {
	b.Run("raw", func(b *testing.B) { // in a transaction that the caller begins, with a round trip of its own
		k := newKeys(b, 1)
		pair.Run(b, k.sides(0, k.river, k.raw))
	})
	b.Run("raw-same-trips", func(b *testing.B) { // against River with a round trip in which nothing is done
		k := newKeys(b, 1)
		pair.Run(b, k.sides(0, k.riverAndTrip, k.raw))
	})
	b.Run("take-only", func(b *testing.B) { // what the take and its transaction take
		k := newKeys(b, 1)
		pair.Run(b, k.sides(0, k.river, k.take))
	})
	b.Run("ticket-only", func(b *testing.B) { // what a job's ticket takes, in River's metadata
		k := newKeys(b, 1)
		pair.Run(b, k.sides(0, k.river, k.ticket))
	})
}

// keys is a table of keys that owe tokens, and one of jobs.
type keys struct {
	*fixture
	conns []*pgxpool.Conn
	alone *river.Client[pgx.Tx]
	limit ratelimit.Limit
}

const (
	manyKeys = 100_000
	manyJobs = 10_000

	// What a key owes at one token a second: neither a benchmark's length nor what it takes makes a
	// difference to it.
	leastDebt, mostDebt = 1000, 4000
)

func newKeys(b *testing.B, conns int) *keys {
	b.Helper()
	pool := pgtest.Pool(b, func(c *pgxpool.Config) {
		c.MaxConns = int32(conns)
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	})
	k := &keys{
		fixture: setUpOn(b, pool, scheduler.Config{}),
		limit:   ratelimit.MustDefine("benchTokens", ratelimit.TokenBucket{Rate: 1, Period: time.Second}),
	}
	sched := scheduler.New(k.limiter, scheduler.Config{})
	k.jobs = sched.Jobs(k.only(b, sched.Configure(pool, &river.Config{Logger: quiet()})))
	k.alone = k.only(b, &river.Config{Logger: quiet()})

	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
			SELECT 'benchTokens', 'org-' || i, -%d - i %% %d, clock_timestamp(), 1, 1, 1e6 FROM generate_series(0, %d) i`,
			leastDebt, mostDebt-leastDebt, manyKeys-1),
		fmt.Sprintf(`INSERT INTO river_job (args, kind, max_attempts, queue, state, scheduled_at)
			SELECT jsonb_build_object('n', i), 'send', 25, 'default', 'scheduled', now() + (%d + i %% %d) * interval '1 s'
			FROM generate_series(1, %d) i`, leastDebt, mostDebt-leastDebt, manyJobs),
		`VACUUM ANALYZE weir_balance`,
		`VACUUM ANALYZE river_job`,
	} {
		if _, err := pool.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	for range conns {
		conn, err := pool.Acquire(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Release)
		k.conns = append(k.conns, conn)
	}
	return k
}

// only is a client that only inserts.
func (k *keys) only(b *testing.B, cfg *river.Config) *river.Client[pgx.Tx] {
	b.Helper()
	client, err := river.NewClient(riverpgxv5.New(k.pool), cfg)
	if err != nil {
		b.Fatal(err)
	}
	return client
}

// side is a transaction on a connection, for a random key and a random time.
type side func(ctx context.Context, conn *pgxpool.Conn, key string, debt int) error

func (k *keys) sides(i int, base, ours side) pair.Sides {
	r := rand.New(rand.NewPCG(1, uint64(i)))
	do := func(s side) func(context.Context) error {
		return func(ctx context.Context) error {
			n := r.IntN(manyKeys)
			return s(ctx, k.conns[i], fmt.Sprintf("org-%d", n), leastDebt+n%(mostDebt-leastDebt))
		}
	}
	return pair.Sides{Metric: "x-inserttx", Base: do(base), Ours: do(ours)}
}

// begun is a SERIALIZABLE transaction in three round trips or, if fn makes more, in as many more.
func begun(ctx context.Context, conn *pgxpool.Conn, fn func(tx pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

func (k *keys) river(ctx context.Context, conn *pgxpool.Conn, _ string, debt int) error {
	return begun(ctx, conn, func(tx pgx.Tx) error { return k.insert(ctx, tx, debt, nil) })
}

func (k *keys) riverAndTrip(ctx context.Context, conn *pgxpool.Conn, _ string, debt int) error {
	return begun(ctx, conn, func(tx pgx.Tx) error {
		if err := conn.Ping(ctx); err != nil {
			return err
		}
		return k.insert(ctx, tx, debt, nil)
	})
}

// ticket is River's insert, of a job with what a ticket looks like.
func (k *keys) ticket(ctx context.Context, conn *pgxpool.Conn, key string, debt int) error {
	due := time.Now().Add(time.Duration(debt) * time.Second).UnixMicro()
	metadata := fmt.Appendf(nil, `{"weir":{"due":%d,"on":[["benchTokens",%q]]}}`, due, key)
	return begun(ctx, conn, func(tx pgx.Tx) error { return k.insert(ctx, tx, debt, metadata) })
}

func (k *keys) insert(ctx context.Context, tx pgx.Tx, debt int, metadata []byte) error {
	due := time.Now().Add(time.Duration(debt) * time.Second)
	_, err := k.alone.InsertTx(ctx, tx, sendArgs{debt}, &river.InsertOpts{ScheduledAt: due, Metadata: metadata})
	return err
}

func (k *keys) take(ctx context.Context, conn *pgxpool.Conn, key string, _ int) error {
	return k.limiter.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
		res, err := k.limiter.RateLimit(ctx, tx, k.limit.For(key).OrReserve())
		if err == nil && res.RunAt.IsZero() {
			err = fmt.Errorf("not reserved: %+v", res)
		}
		return err
	})
}

func (k *keys) reserve(ctx context.Context, conn *pgxpool.Conn, key string, debt int) error {
	return k.limiter.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
		return k.enqueue(ctx, tx, key, debt)
	})
}

func (k *keys) raw(ctx context.Context, conn *pgxpool.Conn, key string, debt int) error {
	return begun(ctx, conn, func(tx pgx.Tx) error { return k.enqueue(ctx, tx, key, debt) })
}

func (k *keys) enqueue(ctx context.Context, tx pgx.Tx, key string, debt int) error {
	in, err := k.jobs.InsertTx(ctx, tx, sendArgs{debt}, nil, k.limit.For(key).OrReserve())
	if err == nil && in.RunAt.IsZero() {
		err = fmt.Errorf("not reserved: %+v", in.Result)
	}
	return err
}
