package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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
	Looked int64 // rows of balances that were looked at
	// rows that were deleted: of those, and for limits with shards the other rows of their keys
	Deleted int64
	Slots   int64 // slots that were deleted
	Settled int64 // settlements that were deleted
}

// Prune deletes idle balances: those that are full again, and so the same as no row. Use it for
// limits with many keys that seldom come back, such as addresses and visitors. Whether a balance is
// full depends on the rule that last took from it, so pruning forgets no usage and grants nothing.
// If a rule with a larger capacity comes later, it finds the balance full, where otherwise it would
// have had to fill up. Balances in debt or in a pause are kept. As work may still wait for them,
// balances that were paused or settled are kept until 30 days after their last use, or after the
// end of their pause if that is later. The rows of a key with shards are deleted together, when all
// of them are idle. Prune also deletes slots of package slots that nobody holds, an hour after they
// were last taken, and records of settlements 30 days after their work could run, or as
// [SettleWithin] says.
//
// It goes through the tables once, in batches. Each batch is a transaction of its own that waits
// for nobody. A caller of a row that is being deleted waits for the batch. In a REPEATABLE READ or
// SERIALIZABLE transaction that caller then fails with 40001, and [Limiter.InTx] runs it again. So
// may a transaction whose snapshot is older than the deletion. If ctx ends, Prune stops between two
// batches, and returns ctx's error and what was done so far.
//
// Any number of processes may prune at once, but that is not faster. Once a day is enough for most
// programs.
func (l *Limiter) Prune(
	ctx context.Context, pool *pgxpool.Pool, cfg PruneConfig,
) (done Pruned, err error) {
	switch {
	case pool == nil:
		return done, errNoPool()
	case !l.made():
		return done, errNotMade()
	case cfg.Batch < 0:
		return done, &InvalidError{Field: "PruneConfig.Batch", Value: cfg.Batch,
			Want: "a number above 0, or 0 for the default"}
	case !(cfg.Share >= 0 && cfg.Share <= 1):
		return done, &InvalidError{Field: "PruneConfig.Share", Value: cfg.Share,
			Want: "above 0 and up to 1, or 0 for the default"}
	}
	cfg.Batch, cfg.Share = cmp.Or(cfg.Batch, 1000), cmp.Or(cfg.Share, 0.25)
	if l.cfg.Portable {
		err = l.prunePortable(ctx, pool, &cfg, &done)
		return done, err
	}
	// rows prunes a table with a primary key of a name, a key and a number.
	rows := func(what, sql string, looked, deleted *int64, more ...any) error {
		at := first
		return pruneTable(ctx, pool, &cfg, &done, what, func(tx pgx.Tx) (int64, error) {
			var n, gone int64
			err := tx.QueryRow(ctx, sql,
				append([]any{at.name, at.key, at.number, cfg.Batch, l.now()}, more...)...).
				Scan(&n, &gone, &at.name, &at.key, &at.number)
			*looked, *deleted = *looked+n, *deleted+gone
			return n, err
		})
	}
	if err := rows("balances", l.sql.Prune, &done.Looked, &done.Deleted,
		settleWithin.Microseconds()); err != nil {
		return done, err
	}
	if err := rows("slots", l.sql.PruneSlots, new(int64), &done.Slots); err != nil {
		return done, err
	}
	id := "00000000-0000-0000-0000-000000000000"
	err = pruneTable(ctx, pool, &cfg, &done, "settlements",
		func(tx pgx.Tx) (looked int64, err error) {
			var deleted int64
			err = tx.QueryRow(ctx, l.sql.PruneSettled, id, cfg.Batch, l.now()).Scan(&looked,
				&deleted, &id)
			done.Settled += deleted
			return looked, err
		})
	return done, err
}

// numbered is the address of a row whose primary key is a name, a key and a number.
type numbered struct {
	name, key string
	number    int32
}

// first comes before all rows.
var first = numbered{number: math.MinInt32}

// pruneTable runs batches until no rows are left to look at.
func pruneTable(ctx context.Context, pool *pgxpool.Pool, cfg *PruneConfig, done *Pruned,
	what string, batch func(pgx.Tx) (looked int64, err error)) error {
	for {
		began, before := time.Now(), *done
		var looked int64
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
			func(tx pgx.Tx) (err error) {
				looked, err = batch(tx)
				return err
			})
		if errors.Is(err, pgx.ErrNoRows) || err == nil && looked == 0 {
			return nil
		}
		if err != nil { // what this batch has done is rolled back
			*done = before
		}
		took := time.Since(began)
		if err == nil && cfg.Progress != nil {
			err = cfg.Progress(*done)
		}
		if err == nil && looked < int64(cfg.Batch) {
			return nil
		}
		if err == nil {
			err = sleep(ctx, time.Duration(float64(took)*(1-cfg.Share)/cfg.Share))
		}
		if err != nil {
			return fmt.Errorf("ratelimit: prune %s: %w", what, hint(ended(ctx, err)))
		}
	}
}
