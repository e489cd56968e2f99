package bench

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// crowd is what a benchmark of several callers runs on: a connection for each.
type crowd struct {
	pool  *pgxpool.Pool
	conns []*pgxpool.Conn
}

func newCrowd(b *testing.B, callers int) crowd {
	b.Helper()
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) { c.MaxConns = int32(callers) + 1 })
	return crowd{pool, conns(b, pool, callers)}
}

// counted is what a crowd does, and how often.
type counted struct {
	do            func(ctx context.Context, worker int) error
	runs, commits *atomic.Int64
}

func (c counted) abortsPerCommit() float64 {
	return float64(c.runs.Load()-c.commits.Load()) / float64(c.commits.Load())
}

// takeAndSleep takes of the key that a worker asks for, and then works for so many seconds.
func (c crowd) takeAndSleep(l *ratelimit.Limiter, level pgx.TxIsoLevel, seconds string,
	key func(worker int) string) counted {
	return c.sleepAfter(l, level, seconds, "", func(worker int) ratelimit.Request { return consumed.For(key(worker)) })
}

// sleepAfter reads something, if it is told what, takes what a worker asks for, and then works for
// so many seconds.
func (c crowd) sleepAfter(l *ratelimit.Limiter, level pgx.TxIsoLevel, seconds, read string,
	request func(worker int) ratelimit.Request) counted {
	var runs, commits atomic.Int64
	do := func(ctx context.Context, worker int) error {
		request := request(worker)
		err := l.InTxOptions(ctx, c.conns[worker], pgx.TxOptions{IsoLevel: level},
			func(ctx context.Context, tx pgx.Tx) error {
				runs.Add(1)
				if read != "" {
					if _, err := tx.Exec(ctx, read); err != nil {
						return err
					}
				}
				if err := rig.Granted(l.RateLimit(ctx, tx, request)); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `SELECT pg_sleep(`+seconds+`)`)
				return err
			})
		if err == nil {
			commits.Add(1)
		}
		return err
	}
	return counted{do, &runs, &commits}
}
