// Package book is what a process remembers of limits with shards: how many shards each has, and the
// balances that it last saw. That is only used to choose where to try first; every decision is made
// on what is in the database. A limit that is not in the books is looked at first, which costs a
// round trip. It knows neither statements nor transactions: the caller tells it of both. It holds a
// bounded number of shards, and is safe for concurrent use.
package book

import (
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// Books have a book for each limit and key. The zero Books are empty.
type Books struct {
	mu    sync.Mutex
	of    map[where.Place]*book
	pages int // of all books
	made  made
	ahead time.Duration // by how much the database's clock is ahead of this process's
}

// maker is a transaction that has changed the layout of a limit.
type maker struct {
	where.Place
	transaction any
}

// made remembers transactions that have changed a layout and may roll back, if InTx has not begun
// them. It has a fixed size: for each hash of a maker the second in which one with that hash was
// last noted. If two makers have the same hash, one is taken for the other, and what it sees is not
// remembered: its next call has to look once more.
type made struct {
	seed maphash.Seed
	at   []int64 // in Unix seconds; 0: never
}

func (m *made) slot(by maker) *int64 {
	if m.at == nil {
		m.seed, m.at = maphash.MakeSeed(), make([]int64, mostMade)
	}
	return &m.at[maphash.Comparable(m.seed, by)%mostMade]
}

// has reports whether a maker was noted within the longest time that its transaction may take.
func (m *made) has(by maker) bool {
	return m.at != nil && time.Now().Unix()-*m.slot(by) <= int64(longest/time.Second)
}

type book struct {
	layout shard.Layout
	shards []page
	mean   float64 // the mean count of recent calls
}

// page is what is remembered of one shard.
type page struct {
	algebra.Balance
	session uint32    // the connection that took from it last; 0 if none of this process did
	taken   time.Time // when this process last took; zero if that was rolled back
	held    bool      // that connection's transaction may still hold it
}

const (
	mostPages = 100_000   // some megabytes
	mostMade  = 1 << 14   // hashes: 128 kB
	longest   = time.Hour // how long a transaction may run after it has changed a layout

	// MuchWorse is by how many counts a shard must stand worse than was known for a take to look
	// again: its own counts, or mean ones if those are larger, as other calls have made the shard
	// worse. A look costs a trip or two. Several processes know a shard as it stood some ten takes
	// of others ago: with 2 counts one call in nine of sixteen processes looked again and made 12 %
	// fewer reservations, with no bound the last of a hundred was later than 5 units
	// (BenchmarkHotReserve).
	MuchWorse = 12

	// lately is how long a shard is left alone after a take by a transaction that may not have
	// ended yet. Most transactions are shorter.
	lately = time.Second
)

// Has reports whether a limit is known to have shards.
func (b *Books) Has(p where.Place) bool {
	_, known := b.Layout(p)
	return known
}

// Layout returns the remembered layout of a limit.
func (b *Books) Layout(p where.Place) (layout shard.Layout, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.of[p]; k != nil {
		return k.layout, true
	}
	return shard.Layout{}, false
}

// Look remembers how a limit was seen, unless the transaction that has seen it has changed its
// layout itself: see Making.
func (b *Books) Look(at where.Place, w *spread.Whole, transaction any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if transaction != nil && b.made.has(maker{at, transaction}) {
		return
	}
	b.ahead = time.Duration(w.At-time.Now().UnixMicro()) * time.Microsecond
	k := b.of[at]
	if k == nil || k.layout != w.Layout {
		k = b.open(at, w.Layout)
	}
	now := time.Now()
	for i := range w.Rows {
		// The later answer counts: what was read may be older than a take of this process, or does
		// not show one that has not committed. If the clock was set back, it counts after a while.
		if p := &k.shards[i]; p.TS <= w.Rows[i].TS || now.Sub(p.taken) >= lately {
			p.Balance = w.Rows[i]
		}
	}
}

// open starts a new book for a limit. It closes others, in no particular order, if there are too
// many pages.
func (b *Books) open(p where.Place, layout shard.Layout) *book {
	if b.of == nil {
		b.of = make(map[where.Place]*book)
	}
	b.close(p)
	for other := range b.of { // whichever comes
		if b.pages+layout.Shards <= mostPages {
			break
		}
		b.close(other)
	}
	k := &book{layout: layout, shards: make([]page, layout.Shards)}
	p.Key = strings.Clone(p.Key) // which may be a small part of something large
	b.of[p] = k
	b.pages += layout.Shards
	return k
}

func (b *Books) close(p where.Place) {
	if k := b.of[p]; k != nil {
		b.pages -= len(k.shards)
		delete(b.of, p)
	}
}

// Making records that a transaction changes the layout of a limit, and forgets the limit. The new
// layout must not be remembered before COMMIT: if it rolls back, those shards do not exist, and a
// shard that does not exist would count as full. It takes no note of a transaction that is nil.
func (b *Books) Making(p where.Place, transaction any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if transaction != nil {
		*b.made.slot(maker{p, transaction}) = time.Now().Unix()
	}
	b.close(p)
}

// Forget closes the book of a limit.
func (b *Books) Forget(p where.Place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(p)
}

// Took records the balance that a take has left in its shard.
func (b *Books) Took(row where.Row, left algebra.Balance, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.page(row)
	if p == nil {
		return
	}
	p.Balance, p.session = left, session
	p.taken, p.held = time.Now(), session != 0
}

// Claim records that a session is about to take from a shard, so that other calls try other shards.
// It has no effect if another session holds it.
func (b *Books) Claim(row where.Row, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(row); p != nil && session != 0 && (!p.held || time.Since(p.taken) >= lately) {
		p.session, p.taken, p.held = session, time.Now(), true
	}
}

// Disclaim records that the session did not take after its Claim.
func (b *Books) Disclaim(row where.Row, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(row); p != nil && session != 0 && p.session == session {
		p.held = false
	}
}

// Ended records that the transaction that took from rows has ended. If it was rolled back, what it
// has left there does not count any more.
func (b *Books) Ended(rows []where.Row, committed bool) {
	if len(rows) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range rows {
		if p := b.page(rows[i]); p != nil {
			if p.held = false; !committed {
				p.taken = time.Time{}
			}
		}
	}
}

// Lost records that a take from a shard conflicted with another transaction, so that the next one
// tries others.
func (b *Books) Lost(row where.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(row); p != nil {
		p.session, p.taken, p.held = 0, time.Now(), true
	}
}

// page returns the page of a row, or nil.
func (b *Books) page(row where.Row) *page {
	layout, i := shard.Address(row.Shard)
	if k := b.of[row.Place]; k != nil && k.layout == layout {
		return &k.shards[i]
	}
	return nil
}

// Choose returns the shards from which a session should try to take what a asks for, the best
// first; none if no shard is known to have it. enough is how many are known to have it. A take
// should not leave less than level: then the shard is much emptier than was known, and another look
// is worth its cost.
func (b *Books) Choose(
	at where.Place, a *algebra.Ask, session uint32, clock func() time.Time,
) (layout shard.Layout, candidates []int, enough int, level float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[at]
	if k == nil {
		return shard.Layout{}, nil, 0, 0
	}
	layout = k.layout
	shares := a.Shares(layout.Shards)
	read := time.Now()
	now := b.now(clock)
	own := -1
	for i := range k.shards {
		if session != 0 && k.shards[i].session == session &&
			(own < 0 || k.shards[i].taken.After(k.shards[own].taken)) {
			own = i
		}
	}
	view := func(i int) shard.View {
		p := &k.shards[i]
		left := shares.Of(i).At(p.Balance, now)
		if left.PausedUntil != algebra.Open && (!a.Reserve || a.Bounded) {
			left.Value = algebra.Closed
		}
		return shard.View{Tokens: left.Value,
			Busy: i != own && p.held && read.Sub(p.taken) < lately}
	}
	row := spread.OfShard(a, layout.Shards, 0)
	least := row.Demand() - a.Count
	if most, _ := spread.Largest(a, &shares); a.Pausable() && a.Count > most {
		least = 0 // otherwise it is taken in parts
	}
	candidates, enough = shard.Choose(layout.Shards, own, a.Count, least, view, rand.IntN)
	for _, i := range candidates {
		level = min(level, view(i).Tokens-a.Count)
	}
	return layout, candidates, enough, level - MuchWorse*max(a.Count, k.mean)
}

// now estimates the database's clock.
func (b *Books) now(clock func() time.Time) int64 {
	if clock != nil {
		return clock().UnixMicro()
	}
	return time.Now().Add(b.ahead).UnixMicro()
}

// Asked records the count of a call, and returns how much of it may be waited for in one shard:
// twice the mean count. A larger part would make the call, and later calls of that shard, run later
// than without shards.
//
// Smaller parts would bring calls nearer to one line while lines are short. But calls in four parts
// hold four shards each, and a limit should have only twice as many shards as callers: they would
// wait for each other. So a short line is where shards cost most: see docs/shards.md.
func (b *Books) Asked(at where.Place, count float64) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[at]
	if k == nil || count == 0 {
		return 0
	}
	if k.mean == 0 {
		k.mean = count
	}
	k.mean += (count - k.mean) / 64
	return 2 * k.mean
}

// Known returns the limit as it is remembered, or nil.
func (b *Books) Known(at where.Place, clock func() time.Time) *spread.Whole {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[at]
	if k == nil {
		return nil
	}
	w := &spread.Whole{Layout: k.layout, Rows: make([]algebra.Balance, len(k.shards)),
		At: b.now(clock)}
	for i := range k.shards {
		w.Rows[i] = k.shards[i].Balance
	}
	return w
}

// Free returns a function that reports whether no other connection of this process is known to hold
// shard i.
func (b *Books) Free(at where.Place, layout shard.Layout, session uint32) func(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := make([]bool, layout.Shards)
	now := time.Now()
	for i := range free {
		p := b.page(where.Row{Place: at, Shard: layout.Row(i)})
		free[i] = p == nil || !p.held || session != 0 && p.session == session ||
			now.Sub(p.taken) >= lately
	}
	return func(i int) bool { return free[i] }
}
