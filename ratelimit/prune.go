package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements that prune. They skip rows that others have locked, so they wait for nobody. They lock
// what they delete for no longer than a batch takes.
const (
	// pruneSQL looks at the next $4 balances after ($1, $2, $3), and deletes those that are idle:
	// full by the rule in the row, which is the one that took last, and not paused. A missing
	// balance is full, too. A row with a delay or moved is kept until no work can wait for it any
	// more: until $6 after it was last written and its pause ended.
	//
	// The rows of a limit with shards are deleted together with their head, or not at all. A
	// process that finds none of them takes the limit for one that was never used, and one that
	// finds a shard missing looks for the head. So pruneSQL first locks all of them, and counts. A
	// closed row is deleted like a missing one once no work waits in it; but row 0, from before
	// there were shards, stays closed as long as there is a head.
	//
	// Locks: the rows that it deletes. Predicate reads: at READ COMMITTED none.
	//
	// $1 name $2 key $3 shard $4 batch $5 clock $6 how old a row with a delay or moved must be, in
	// microseconds
	pruneSQL = `WITH page AS MATERIALIZED (
	SELECT name, key, shard FROM {schema}weir_balance WHERE (name, key, shard) > ($1::text, $2::text, $3::integer)
	ORDER BY name, key, shard LIMIT $4::bigint
), c AS MATERIALIZED (
	SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock
), head AS MATERIALIZED (
	SELECT h.name, h.key, h.value FROM page JOIN {schema}weir_balance h USING (name, key, shard) CROSS JOIN c
	WHERE h.shard = -1 AND NOT EXISTS (
		SELECT FROM {schema}weir_balance b
		WHERE (b.name, b.key) = (h.name, h.key) AND NOT (b.shard = -1 OR (b.shard > 0 OR b.value = '-Infinity'::float8) AND {idle}))
), alone AS MATERIALIZED (
	SELECT b.name, b.key, b.shard FROM page JOIN {schema}weir_balance b USING (name, key, shard) CROSS JOIN c
	WHERE b.shard >= 0 AND (b.shard = 0) = (b.value > '-Infinity'::float8) AND {idle}
	FOR UPDATE OF b SKIP LOCKED
), shards AS MATERIALIZED (
	SELECT b.name, b.key, b.shard FROM head JOIN {schema}weir_balance b USING (name, key) CROSS JOIN c
	WHERE b.shard = -1 AND b.value = head.value OR (b.shard > 0 OR b.value = '-Infinity'::float8) AND {idle}
	FOR UPDATE OF b SKIP LOCKED
), idle AS (
	SELECT name, key, shard FROM alone
	UNION SELECT s.name, s.key, s.shard FROM shards s
	WHERE (SELECT count(*) FROM shards o WHERE (o.name, o.key) = (s.name, s.key)) =
		(SELECT count(*) FROM {schema}weir_balance o WHERE (o.name, o.key) = (s.name, s.key))
), gone AS (
	DELETE FROM {schema}weir_balance b USING idle WHERE (b.name, b.key, b.shard) = (idle.name, idle.key, idle.shard) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.name, last.key, last.shard
FROM (SELECT name, key, shard FROM page ORDER BY name DESC, key DESC, shard DESC LIMIT 1) last`

	isIdle = `(b.paused_until IS NULL OR b.paused_until <= c.clock) AND {full}
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8) > $within::bigint::float8)`

	// isFull compares refilled of give_sql.go with the capacity. In a closed row the capacity is
	// what it owed.
	isFull = `CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
			floor(round(date_part('epoch', c.clock - b.origin) * 1e6::float8) / b.period::float8) -
			floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END >= b.capacity`

	// pruneSlotsSQL deletes slots that nobody holds, once their fencing tokens are an hour old: a
	// clock that is set back by less cannot give out the same token again.
	//
	// $1 name $2 key $3 slot $4 batch $5 clock
	pruneSlotsSQL = `WITH page AS MATERIALIZED (
	SELECT name, key, slot FROM {schema}weir_slot WHERE (name, key, slot) > ($1::text, $2::text, $3::integer)
	ORDER BY name, key, slot LIMIT $4::bigint
), free AS MATERIALIZED (
	SELECT s.name, s.key, s.slot FROM page JOIN {schema}weir_slot s USING (name, key, slot)
	CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
	WHERE {forgotten} FOR UPDATE OF s SKIP LOCKED
), gone AS (
	DELETE FROM {schema}weir_slot s USING free WHERE (s.name, s.key, s.slot) = (free.name, free.key, free.slot) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.name, last.key, last.slot
FROM (SELECT name, key, slot FROM page ORDER BY name DESC, key DESC, slot DESC LIMIT 1) last`

	// a token is the time in microseconds at which it was granted, or a little more
	isForgotten = `s.until <= c.clock AND s.token <= round(date_part('epoch', c.clock) * 1e6::float8)::bigint - 3600000000`

	// pruneSettledSQL deletes settlements of reservations that nobody can settle any more.
	//
	// $1 id, after which $2 batch $3 clock
	pruneSettledSQL = `WITH page AS MATERIALIZED (
	SELECT id, until FROM {schema}weir_settled WHERE id > $1::uuid ORDER BY id LIMIT $2::bigint
), gone AS (
	DELETE FROM {schema}weir_settled s USING page WHERE s.id = page.id AND page.until <= coalesce($3::timestamptz, clock_timestamp()) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.id FROM (SELECT id FROM page ORDER BY id DESC LIMIT 1) last`
)

// PruneConfig configures [Limiter.Prune]. The zero PruneConfig uses the defaults.
type PruneConfig struct {
	// Batch is how many rows are looked at in one transaction. Default: 1000.
	Batch int

	// Share is the share of the time in which Prune works; it rests in between. Above 0 and at most
	// 1. Default: 0.25.
	Share float64

	// Progress, if set, is called after each batch with what has been done so far. If it returns an
	// error, Prune ends with that error.
	Progress func(Pruned) error
}

// Pruned is what [Limiter.Prune] has done.
type Pruned struct {
	Looked  int64 // rows of balances that were looked at
	Deleted int64 // rows that were deleted: of those, and for limits with shards the other rows of their keys
	Slots   int64 // slots that were deleted
	Settled int64 // settlements that were deleted
}

// Prune deletes idle balances: those that are full again, and so the same as no row. Use it for
// limits with many keys that seldom come back, such as addresses and visitors. Whether a balance is
// full depends on the rule that last took from it, so pruning forgets no usage and grants nothing.
// If a rule with a larger capacity comes later, it finds the balance full, where otherwise it would
// have had to fill up. Balances in debt or in a pause are kept. As work may still wait for them,
// balances that were paused or settled are kept until 30 days after their last use, or after the end
// of their pause if that is later. The rows of a key with shards are deleted together, when all of
// them are idle. Prune also deletes slots of package slots that nobody holds, an hour after they
// were last taken, and records of settlements 30 days after their work could run, or as
// [SettleWithin] says.
//
// It goes through the tables once, in batches. Each batch is a transaction of its own that waits
// for nobody. A caller of a row that is being deleted waits for the batch. In a REPEATABLE READ or
// SERIALIZABLE transaction that caller then fails with 40001, and [Limiter.InTx] runs it again. If
// ctx ends, Prune stops between two batches, and returns ctx's error and what was done so far.
//
// Any number of processes may prune at once, but that is not faster. Once a day is enough for most
// programs.
func (l *Limiter) Prune(ctx context.Context, pool *pgxpool.Pool, cfg PruneConfig) (done Pruned, err error) {
	switch {
	case pool == nil:
		return done, errNoPool()
	case !l.made():
		return done, errNotMade()
	case cfg.Batch < 0:
		return done, &InvalidError{Field: "PruneConfig.Batch", Value: cfg.Batch, Want: "a number above 0, or 0 for the default"}
	case !(cfg.Share >= 0 && cfg.Share <= 1):
		return done, &InvalidError{Field: "PruneConfig.Share", Value: cfg.Share, Want: "above 0 and up to 1, or 0 for the default"}
	}
	if cfg.Batch == 0 {
		cfg.Batch = 1000
	}
	if cfg.Share == 0 {
		cfg.Share = 0.25
	}
	within := settleWithin.Microseconds()
	if l.portable {
		err = l.prunePortable(ctx, pool, &cfg, &done, within)
		return done, err
	}
	// rows prunes a table with a primary key of a name, a key and a number.
	rows := func(what, sql string, looked, deleted *int64, more ...any) error {
		at := first
		return pruneTable(ctx, pool, &cfg, &done, what, func(tx pgx.Tx) (int64, error) {
			var n, gone int64
			err := tx.QueryRow(ctx, sql, append([]any{at.name, at.key, at.number, cfg.Batch, l.now()}, more...)...).
				Scan(&n, &gone, &at.name, &at.key, &at.number)
			*looked, *deleted = *looked+n, *deleted+gone
			return n, err
		})
	}
	if err := rows("balances", l.sql.prune, &done.Looked, &done.Deleted, within); err != nil {
		return done, err
	}
	if err := rows("slots", l.sql.pruneSlots, new(int64), &done.Slots); err != nil {
		return done, err
	}
	id := "00000000-0000-0000-0000-000000000000"
	return done, pruneTable(ctx, pool, &cfg, &done, "settlements", func(tx pgx.Tx) (looked int64, err error) {
		var deleted int64
		err = tx.QueryRow(ctx, l.sql.pruneSettled, id, cfg.Batch, l.now()).Scan(&looked, &deleted, &id)
		done.Settled += deleted
		return looked, err
	})
}

// numbered is the address of a row whose primary key is a name, a key and a number.
type numbered struct {
	name, key string
	number    int32
}

// first comes before all rows.
var first = numbered{number: math.MinInt32}

func pruneTable(ctx context.Context, pool *pgxpool.Pool, cfg *PruneConfig, done *Pruned, what string,
	batch func(pgx.Tx) (looked int64, err error)) error {
	if err := prune(ctx, pool, cfg, done, batch); err != nil {
		return fmt.Errorf("ratelimit: prune %s: %w", what, hint(ended(ctx, err)))
	}
	return nil
}

// prune runs batches until no rows are left to look at.
func prune(ctx context.Context, pool *pgxpool.Pool, cfg *PruneConfig, done *Pruned, batch func(pgx.Tx) (looked int64, err error)) error {
	for {
		began := time.Now()
		var looked int64
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			looked, err = batch(tx)
			return err
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		took := time.Since(began)
		if cfg.Progress != nil {
			if err := cfg.Progress(*done); err != nil {
				return err
			}
		}
		if looked < int64(cfg.Batch) {
			return nil
		}
		if err := sleep(ctx, time.Duration(float64(took)*(1-cfg.Share)/cfg.Share)); err != nil {
			return err
		}
	}
}
