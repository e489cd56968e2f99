package ratelimit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/ranges"
)

// knownRanges are the ranges of hashes by which Citus divides the balances, as far as they are
// known. They change when somebody splits a range. Until they are read anew, statements for several
// keys may be refused: then the calls are decided one by one.
type knownRanges struct {
	known atomic.Pointer[ranges.Ranges]
	next  atomic.Int64 // when they may be read again, in nanoseconds
}

const rangesEvery = 10 * time.Second

// find returns the number of a key's range.
func (k *knownRanges) find(key string) (nr int, known bool) {
	if r := k.known.Load(); r != nil {
		return r.Find(key), true
	}
	return 0, false
}

// together reports whether one statement can reach the rows of two keys.
func (k *knownRanges) together(a, b string) bool {
	r := k.known.Load()
	return a == b || r != nil && r.Find(a) == r.Find(b)
}

// doubt forgets the ranges if an error says that they may have changed (feature_not_supported).
func (k *knownRanges) doubt(err error) {
	if stateOf(err) == "0A000" {
		k.known.Store(nil)
	}
}

// readRanges reads the ranges if they are not known, in a trip of its own. If that fails, calls of
// one key at a time are decided together.
func (p *scheme) readRanges() {
	k := &p.c.l.ranges
	now, next := time.Now().UnixNano(), k.next.Load()
	if k.known.Load() != nil || now < next ||
		!k.next.CompareAndSwap(next, now+int64(rangesEvery)) {
		return
	}
	_ = p.c.watch.over(p.lane, p.runner, func(ctx context.Context) error {
		rows, _ := p.conn.Query(ctx, p.c.l.sql.Ranges) // rows has the error, too
		from, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err == nil {
			k.known.Store(ranges.Of(from))
		}
		return err
	})
	p.rollback()
}
