package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

func (l *Limiter) prunePortable(
	ctx context.Context, pool *pgxpool.Pool, cfg *PruneConfig, done *Pruned,
) error {
	began, err := l.hereNow(ctx, pool)
	if err != nil {
		return fmt.Errorf("ratelimit: prune: %w", hint(ended(ctx, err)))
	}
	now := l.now
	// what is idle as it begins is so later, unless it changes
	if l.cfg.Clock == nil && !began.IsZero() {
		now = func() any { return began }
	}
	at := first
	err = pruneTable(ctx, pool, cfg, done, "balances", func(tx pgx.Tx) (looked int64, err error) {
		rows, _ := tx.Query(ctx, l.sql.Page, at.name, at.key, at.number, cfg.Batch, now(),
			settleWithin.Microseconds())
		var keys []where.Place // in order
		var idle bool
		tag, err := pgx.ForEachRow(rows, []any{&at.name, &at.key, &at.number, &idle}, func() error {
			p := where.Place{Name: at.name, Key: at.key}
			// homes of a limit without keys: see citus.go
			if strings.HasPrefix(at.key, shard.Reserved) {
				p.Key = ""
			}
			if idle && !slices.Contains(keys[max(0, len(keys)-1):], p) {
				keys = append(keys, p)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		done.Looked += tag.RowsAffected()
		return tag.RowsAffected(), l.pruneKeys(ctx, tx, keys, now(), &done.Deleted)
	})
	if err != nil {
		return err
	}
	at = first
	err = pruneTable(ctx, pool, cfg, done, "slots", func(tx pgx.Tx) (int64, error) {
		rows, _ := tx.Query(ctx, l.sql.PageSlots, at.name, at.key, at.number, cfg.Batch, now())
		var forgotten bool
		var clock time.Time
		return deleteEach(ctx, tx, rows, []any{&at.name, &at.key, &at.number, &forgotten, &clock},
			&done.Slots, func(b *pgx.Batch) {
				if forgotten {
					b.Queue(l.sql.DeleteSlot, at.name, at.key, at.number, clock)
				}
			})
	})
	if err != nil {
		return err
	}
	id := "00000000-0000-0000-0000-000000000000"
	return pruneTable(ctx, pool, cfg, done, "settlements", func(tx pgx.Tx) (int64, error) {
		rows, _ := tx.Query(ctx, l.sql.PageSettled, id, cfg.Batch, now())
		var key string
		var over bool
		return deleteEach(ctx, tx, rows, []any{&id, &key, &over}, &done.Settled,
			func(b *pgx.Batch) {
				if over {
					b.Queue(l.sql.DeleteSettled, id, key)
				}
			})
	})
}

// deleteEach reads rows into into, and calls each to queue a deletion for each. It adds the number
// of deleted rows to gone, and returns how many rows were read.
func deleteEach(ctx context.Context, tx pgx.Tx, rows pgx.Rows, into []any, gone *int64,
	each func(*pgx.Batch)) (int64, error) {
	batch := &pgx.Batch{}
	tag, err := pgx.ForEachRow(rows, into, func() error {
		each(batch)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return tag.RowsAffected(), sendAll(ctx, tx, batch, gone)
}

// pruneKeys deletes idle rows of keys, and adds their number to gone. It goes by the rules of
// Statements.Prune: a key with a head is deleted as a whole if all of its rows are locked and idle;
// otherwise only its closed rows are.
func (l *Limiter) pruneKeys(
	ctx context.Context, tx pgx.Tx, keys []where.Place, now any, gone *int64,
) error {
	lock, remove := &pgx.Batch{}, &pgx.Batch{}
	all := make([]pruning, len(keys))
	for i, p := range keys {
		for _, key := range l.homes(p.Key) {
			all[i].queue(l, lock, p.Name, key, now)
		}
	}
	if err := sendAll(ctx, tx, lock, nil); err != nil {
		return err
	}
	for i, p := range keys {
		for key, shards := range all[i].idle() {
			remove.Queue(l.sql.DeleteRows, p.Name, key, shards)
		}
	}
	return sendAll(ctx, tx, remove, gone)
}

// pruning has the rows of a limit and key that nobody else has locked, and how many rows there are
// in all.
type pruning struct {
	held []prunable
	all  int
}

type prunable struct {
	key          string
	shard        int32
	closed, idle bool
}

func (k *pruning) queue(l *Limiter, batch *pgx.Batch, name, key string, now any) {
	within := settleWithin.Microseconds()
	batch.Queue(l.sql.LockKey, name, key, now, within).Query(func(rows pgx.Rows) error {
		r := prunable{key: key}
		_, err := pgx.ForEachRow(rows, []any{&r.shard, &r.closed, &r.idle}, func() error {
			k.held = append(k.held, r)
			return nil
		})
		return err
	})
	batch.Queue(l.sql.CountKey, name, key).QueryRow(func(r pgx.Row) error {
		var n int
		err := r.Scan(&n)
		k.all += n
		return err
	})
}

// idle returns the rows that may be deleted, by the key under which they are stored.
func (k *pruning) idle() map[string][]int32 {
	whole, head := k.all == len(k.held), false
	alone, shards := map[string][]int32{}, map[string][]int32{}
	for _, r := range k.held {
		shards[r.key] = append(shards[r.key], r.shard)
		if r.shard < 0 {
			head = true
			continue
		}
		if r.idle && (r.shard > 0) == r.closed {
			alone[r.key] = append(alone[r.key], r.shard)
		}
		whole = whole && r.idle && (r.shard > 0 || r.closed)
	}
	if !head || !whole {
		return alone
	}
	return shards
}

// sendAll sends a batch. It adds to gone how many rows are deleted by queries without a callback.
func sendAll(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, gone *int64) error {
	if batch.Len() == 0 {
		return nil
	}
	for _, q := range batch.QueuedQueries {
		if q.Fn == nil {
			q.Exec(func(tag pgconn.CommandTag) error {
				*gone += tag.RowsAffected()
				return nil
			})
		}
	}
	return tx.SendBatch(ctx, batch).Close()
}
