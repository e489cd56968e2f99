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

// consumed is ample: whatever a benchmark takes is granted.
var consumed = ratelimit.MustDefine("sendMessage", ratelimit.TokenBucket{Rate: 1e6, Period: time.Hour})

// BenchmarkConsumeInTx takes a token of one of 100,000 keys in a SERIALIZABLE transaction, against
// an UPDATE of one row of a table of the same shape by its key. x-update is the base's time by
// ours.
//
// By the runner it is InTx, against BEGIN and the UPDATE in one round trip and COMMIT in another.
// Raw, the caller begins the transaction on both sides, in a round trip of its own.
func BenchmarkConsumeInTx(b *testing.B) {
	for _, c := range []struct {
		name       string
		roundTrip  time.Duration
		base, ours func(l *lone) side
	}{
		{"runner", loopback, (*lone).updateInBatch, (*lone).consume},
		{"runner/network", network, (*lone).updateInBatch, (*lone).consume},
		{"raw", loopback, (*lone).updateRaw, (*lone).consumeRaw},
		{"raw/network", network, (*lone).updateRaw, (*lone).consumeRaw},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLone(b, c.roundTrip)
			rig.Exec(b, l.pool, `CREATE TABLE bare (LIKE weir_balance INCLUDING ALL) WITH (fillfactor = 80)`)
			fill(b, l.pool, "sendMessage", manyKeys, ample, "NULL")
			rig.Exec(b, l.pool, `INSERT INTO bare SELECT * FROM weir_balance`)
			rig.Exec(b, l.pool, `VACUUM ANALYZE weir_balance, bare`)
			l.compare(b, "x-update", c.base(l), c.ours(l))
		})
	}
}

const updateSQL = `UPDATE bare SET value = value - 1 WHERE name = $1 AND key = $2 AND shard = $3 RETURNING value`

// updateInBatch makes the same round trips as the runner.
func (*lone) updateInBatch() side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		batch := &pgx.Batch{}
		batch.Queue(`BEGIN ISOLATION LEVEL SERIALIZABLE`)
		batch.Queue(updateSQL, "sendMessage", key(n), 0)
		results := conn.SendBatch(ctx, batch)
		if _, err := results.Exec(); err != nil {
			return err
		}
		var left float64
		if err := results.QueryRow().Scan(&left); err != nil {
			return err
		}
		if err := results.Close(); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `COMMIT`)
		return err
	}
}

func (l *lone) consume() side { return l.takeOf(consumed) }

// begun is a transaction that the caller begins. Its errors end the benchmark, and with it the
// connection.
func begun(ctx context.Context, conn *pgxpool.Conn, fn func(tx pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (*lone) updateRaw() side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		return begun(ctx, conn, func(tx pgx.Tx) error {
			var left float64
			return tx.QueryRow(ctx, updateSQL, "sendMessage", key(n), 0).Scan(&left)
		})
	}
}

func (l *lone) consumeRaw() side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		return begun(ctx, conn, func(tx pgx.Tx) error {
			return rig.Granted(l.limiter.RateLimit(ctx, tx, consumed.For(key(n))))
		})
	}
}
