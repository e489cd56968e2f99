package bench

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
)

// BenchmarkOneTrip takes a token and writes a row of the caller's, in one round trip by SendBatch.
// x-update is the time of the same batch with a bare UPDATE in the place of the take, by ours.
// x-intx is that of InTx with the same statements.
func BenchmarkOneTrip(b *testing.B) {
	for _, c := range []struct {
		name      string
		metric    string
		roundTrip time.Duration
		base      func(l *lone) side
	}{
		{"update", "x-update", loopback, (*lone).updateInOneTrip},
		{"update/3ms", "x-update", 3 * time.Millisecond, (*lone).updateInOneTrip},
		{"intx/3ms", "x-intx", 3 * time.Millisecond, (*lone).consumeAndWrite},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLone(b, c.roundTrip)
			rig.Exec(b, l.pool, `CREATE TABLE bare (LIKE weir_balance INCLUDING ALL) WITH (fillfactor = 80)`)
			rig.Exec(b, l.pool, `CREATE TABLE message (sender text, text text)`)
			fill(b, l.pool, "sendMessage", manyKeys, ample, "NULL")
			rig.Exec(b, l.pool, `INSERT INTO bare SELECT * FROM weir_balance`)
			rig.Exec(b, l.pool, `VACUUM ANALYZE weir_balance, bare`)
			l.compare(b, c.metric, c.base(l), l.sendBatch)
		})
	}
}

const writeSQL = `INSERT INTO message (sender, text) VALUES ($1, $2)`

func (l *lone) sendBatch(ctx context.Context, conn *pgxpool.Conn, n int) error {
	return rig.Granted(l.limiter.SendBatch(ctx, conn, func(b *pgx.Batch) error {
		b.Queue(writeSQL, key(n), "hello")
		return nil
	}, consumed.For(key(n))))
}

func (*lone) updateInOneTrip() side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		batch := &pgx.Batch{}
		batch.Queue(`BEGIN ISOLATION LEVEL SERIALIZABLE`)
		batch.Queue(updateSQL, "sendMessage", key(n), 0)
		batch.Queue(writeSQL, key(n), "hello")
		batch.Queue(`COMMIT`)
		return conn.SendBatch(ctx, batch).Close()
	}
}

func (l *lone) consumeAndWrite() side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error {
		return l.limiter.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
			if err := rig.Granted(l.limiter.RateLimit(ctx, tx, consumed.For(key(n)))); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, writeSQL, key(n), "hello")
			return err
		})
	}
}
