package ratelimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/ranges"
)

// knownRanges are the ranges of hashes by which Citus divides the balances: what this process knows
// of them. When somebody divides a range, Citus refuses statements for several keys that were in
// it. Their calls are decided one by one, and the ranges are read again. Until then, only calls for
// the same key are decided together.
type knownRanges struct {
	known   atomic.Pointer[ranges.Ranges]
	mu      sync.Mutex // held by the one that reads them
	read    time.Time
	pause   time.Duration // after which they may be read again
	refused atomic.Pointer[ranges.Ranges]
}

const (
	rangesEvery    = 10 * time.Second
	rangesSeldomer = time.Hour // at most, while those are refused that were read
)

// find returns the number of a key's range.
func (k *knownRanges) find(key string) (nr int, known bool) {
	if r := k.known.Load(); r != nil {
		return r.Find(key), true
	}
	return 0, false
}

// together reports whether one statement can reach the rows of two keys.
func (k *knownRanges) together(a, b string) bool {
	if a == b {
		return true
	}
	r := k.known.Load()
	return r != nil && r.Find(a) == r.Find(b)
}

// isRefused reports whether Citus refuses a statement (feature_not_supported).
func isRefused(err error) bool { return stateOf(err) == "0A000" }

// doubt forgets the ranges by which a batch was planned if an error says that they have changed.
func (k *knownRanges) doubt(planned *ranges.Ranges, err error) {
	if planned != nil && isRefused(err) && k.known.CompareAndSwap(planned, nil) {
		k.refused.Store(planned)
	}
}

// note takes over ranges that were read. If they are those that Citus has refused, it refuses them
// for another reason.
func (k *knownRanges) note(from []int32) {
	r := ranges.Of(from)
	if r.Equal(k.refused.Load()) {
		k.pause = min(2*k.pause, rangesSeldomer)
	} else {
		k.pause = rangesEvery
	}
	k.known.Store(r)
}

// readRanges reads the ranges if they are not known, in a trip of its own. If that fails, it is
// tried again later.
func (p *scheme) readRanges() {
	k := &p.c.l.ranges
	if k.known.Load() != nil || !k.mu.TryLock() {
		return
	}
	defer k.mu.Unlock()
	if time.Since(k.read) < k.pause {
		return
	}
	k.read, k.pause = time.Now(), max(k.pause, rangesEvery)
	p.trips++
	ctx, cancel := context.WithTimeout(context.Background(), overdue)
	defer cancel()
	rows, _ := p.conn.Query(ctx, p.c.l.sql.Ranges) // rows has the error, too
	if from, err := pgx.CollectRows(rows, pgx.RowTo[int32]); err == nil {
		k.note(from)
	}
	p.rollback()
}
