package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// ResetKey makes all balances of a key full again, for all limits, including those that this
// program does not define: everything of a tenant, a user or an address. Keys that only begin with
// this one are not affected. Otherwise it is [Limiter.ResetRateLimit]: a pause continues, and
// reserved work still runs.
//
// It reads an index page for each limit that is in use. Above READ COMMITTED it conflicts with
// transactions that use a limit for the first time, and may have to run again.
// [Autocommit.ResetKey] is READ COMMITTED. With [Config.Portable] it reads the whole
// table, and on Citus the part of it in which the key is.
func (l *Limiter) ResetKey(ctx context.Context, tx pgx.Tx, key string) error {
	return l.in(tx).ResetKey(ctx, key)
}

// ResetKey is [Limiter.ResetKey], committed when it returns.
func (a *Autocommit) ResetKey(ctx context.Context, key string) error {
	return a.inTx(ctx, time.Now(), func(ctx context.Context, x executor) error {
		return within{l: a.l, x: x}.ResetKey(ctx, key)
	})
}

func (l *Limiter) resetKey(ctx context.Context, x executor, key string) error {
	sql := l.sql.ResetKey
	if l.portable {
		sql = l.sql.ResetKeyHere
	}
	reset := &statement{sql: sql, args: []any{key, float64(algebra.Full), l.now()}, once: new(bool)}
	if err := x.run(ctx, []*statement{reset}); err != nil {
		return fmt.Errorf("ratelimit: reset key %q: %w", shorten(key), hint(ended(ctx, err)))
	}
	freed(x, func() { l.denials.ForgetKey(key) })
	return nil
}
