package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/algebra"
)

// resetKeySQL is resetSQL for all balances of a key. There are few names of limits, and it finds
// each with one descent of the index. It locks rows in the order in which all calls lock theirs.
//
// Locks: the rows. Predicate reads: those, and the index pages at which the names begin.
//
// $1 key $2 a full balance $3 clock
const resetKeySQL = `WITH RECURSIVE names (name) AS (
	(SELECT name FROM {schema}weir_balance ORDER BY name LIMIT 1)
	UNION ALL
	SELECT (SELECT b.name FROM {schema}weir_balance b WHERE b.name > n.name ORDER BY b.name LIMIT 1) FROM names n WHERE n.name IS NOT NULL
), held AS MATERIALIZED (
	SELECT b.name, b.shard FROM names n JOIN {schema}weir_balance b ON b.name = n.name AND b.key = $1::text AND b.shard >= 0 AND b.value > '-Infinity'
	ORDER BY b.name, b.shard FOR NO KEY UPDATE OF b
)
UPDATE {schema}weir_balance b SET value = $2::float8, ts = coalesce($3::timestamptz, clock_timestamp())
FROM held WHERE b.name = held.name AND b.key = $1::text AND b.shard = held.shard
RETURNING true`

// resetKeyHereSQL is resetKeySQL for distributed engines, on which the node with the rows of a key
// cannot find all names of limits: see [Config.Portable]. It reads all rows of that node, or of the
// part of the table that contains the key.
//
// Parameters as above
const resetKeyHereSQL = `WITH c AS MATERIALIZED (
	SELECT coalesce($3::timestamptz, clock_timestamp()) AS now
), held AS MATERIALIZED (
	SELECT name, shard FROM {schema}weir_balance WHERE key = $1::text AND shard >= 0 AND value > '-Infinity'
	ORDER BY name, shard FOR NO KEY UPDATE
)
UPDATE {schema}weir_balance b SET value = $2::float8, ts = c.now
FROM held, c WHERE b.name = held.name AND b.key = $1::text AND b.shard = held.shard
RETURNING true`

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
	x, err := l.transaction(tx)
	if err != nil {
		return err
	}
	return l.resetKey(ctx, x, key)
}

// ResetKey is [Limiter.ResetKey], committed when it returns.
func (a *Autocommit) ResetKey(ctx context.Context, key string) error {
	return a.inTx(ctx, time.Now(), func(ctx context.Context, tx pgx.Tx) error { return a.l.ResetKey(ctx, tx, key) })
}

func (s inSQL) ResetKey(ctx context.Context, key string) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.l.resetKey(ctx, sqlExecutor{s.tx, s.l}, key)
}

func (l *Limiter) resetKey(ctx context.Context, x executor, key string) error {
	if err := badKey("", key); err != nil {
		return err
	}
	sql := l.sql.resetKey
	if l.portable {
		sql = l.sql.resetKeyHere
	}
	reset := &statement{sql: sql, args: []any{key, float64(algebra.Full), l.now()}, once: new(bool)}
	if err := x.run(ctx, []*statement{reset}); err != nil {
		return fmt.Errorf("ratelimit: reset key %q: %w", shorten(key), hint(ended(ctx, err)))
	}
	freed(x, func() { l.denials.forgetKey(key) })
	return nil
}
