package ratelimit

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/algebra"
	"github.com/weir-go/weir/internal/spread"
	"github.com/weir-go/weir/internal/where"
	"github.com/weir-go/weir/shard"
)

// books are what this process remembers of limits with shards: how many shards each has, and the
// balances that it last saw. That is only used to choose where to try first; every decision is made
// on what is in the database. A limit without a book is looked at first, which costs a round trip.
type books struct {
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
	seed  maphash.Seed
	began time.Time
	at    []int32 // seconds after began, plus one; 0: never
}

func (m *made) slot(by maker) *int32 {
	if m.at == nil {
		m.seed, m.began, m.at = maphash.MakeSeed(), time.Now(), make([]int32, mostMade)
	}
	return &m.at[maphash.Comparable(m.seed, by)%mostMade]
}

func (m *made) now() int32 { return int32(min(time.Since(m.began)/time.Second+1, math.MaxInt32)) }

func (m *made) note(by maker) {
	at := m.slot(by)
	*at = m.now()
}

// has reports whether a maker was noted within the longest time that its transaction may take.
func (m *made) has(by maker) bool {
	if m.at == nil {
		return false
	}
	at := *m.slot(by)
	return at > 0 && m.now()-at <= int32(longest/time.Second)
}

type book struct {
	layout shard.Layout
	shards []page
	mean   float64 // the mean count of recent calls
}

// page is what is remembered of one shard.
type page struct {
	algebra.Balance
	session uint32 // the connection that took from it last; 0 if none of this process did
	taken   time.Time
	held    bool // that connection's transaction may still hold it
}

const (
	mostPages = 100_000   // some megabytes
	mostMade  = 1 << 14   // hashes: 64 kB
	longest   = time.Hour // how long a transaction may run after it has changed a layout

	// muchWorse is by how many counts a shard must stand worse than was known for a take to look
	// again. A look costs a trip or two. Several processes know a shard as it stood some ten takes
	// of others ago: with 2 counts one call in nine of sixteen processes looked again and made 12 %
	// fewer reservations, with no bound the last of a hundred was later than 5 units
	// (BenchmarkHotReserve).
	muchWorse = 8

	// lately is how long a shard is left alone after a take by a transaction that may not have
	// ended yet. Most transactions are shorter.
	lately = time.Second
)

// sharded reports whether one of the calls is for a limit that should have shards, or is known to
// have some.
func (b *books) sharded(calls []call) bool {
	for i := range calls {
		if calls[i].shards > 1 {
			return true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.of) == 0 {
		return false
	}
	for i := range calls {
		if b.of[calls[i].Place] != nil {
			return true
		}
	}
	return false
}

// layout returns the remembered layout of the limit of c.
func (b *books) layout(c *call) (layout shard.Layout, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.of[c.Place]; k != nil {
		return k.layout, true
	}
	return shard.Layout{}, false
}

// look remembers how a limit was seen, unless the transaction itself has changed its layout.
func (b *books) look(c *call, w *spread.Whole, transaction any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch a, ok := transaction.(*attempt); {
	case ok && a.made[c.Place]:
		return
	case !ok && transaction != nil && b.made.has(maker{c.Place, transaction}):
		return
	}
	b.ahead = time.Duration(w.At-time.Now().UnixMicro()) * time.Microsecond
	k := b.of[c.Place]
	if k == nil || k.layout != w.Layout {
		k = b.open(c.Place, w.Layout)
	}
	now := time.Now()
	for i := range w.Rows {
		// A take of this process that has not committed is not visible in what was read, and is
		// known better.
		if p := &k.shards[i]; p.TS <= w.Rows[i].TS || !p.held || now.Sub(p.taken) >= lately {
			p.Balance = w.Rows[i]
		}
	}
}

// open starts a new book for a limit. It closes others, in no particular order, if there are too
// many pages.
func (b *books) open(p where.Place, layout shard.Layout) *book {
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
	b.of[p] = k
	b.pages += layout.Shards
	return k
}

func (b *books) close(p where.Place) {
	if k := b.of[p]; k != nil {
		b.pages -= len(k.shards)
		delete(b.of, p)
	}
}

// making records that a transaction changes the layout of a limit, and forgets the limit. The new
// layout must not be remembered before COMMIT: if it rolls back, those shards do not exist, and a
// shard that does not exist would count as full.
func (b *books) making(c *call, transaction any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := transaction.(*attempt); ok {
		if a.made == nil {
			a.made = make(map[where.Place]bool)
		}
		a.made[c.Place] = true
	} else {
		b.made.note(maker{c.Place, transaction})
	}
	b.close(c.Place)
}

// forget closes the book of a limit.
func (b *books) forget(c *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(c.Place)
}

// took records the balance that a take has left in its shard.
func (b *books) took(row *call, left algebra.Balance, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.page(row, row.Shard)
	if p == nil {
		return
	}
	p.Balance, p.session = left, session
	if session != 0 {
		p.taken, p.held = time.Now(), true
	}
}

// claim records that a session is about to take from a shard, so that other calls try other shards.
// It has no effect if another session holds it.
func (b *books) claim(c *call, row int32, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(c, row); p != nil && session != 0 && (!p.held || time.Since(p.taken) >= lately) {
		p.session, p.taken, p.held = session, time.Now(), true
	}
}

// disclaim records that the session did not take after its claim.
func (b *books) disclaim(c *call, row int32, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(c, row); p != nil && session != 0 && p.session == session {
		p.held = false
	}
}

// ended records that the transaction that took from rows has ended.
func (b *books) ended(rows []call) {
	if len(rows) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range rows {
		if p := b.page(&rows[i], rows[i].Shard); p != nil {
			p.held = false
		}
	}
}

// lost records that a take from a shard conflicted with another transaction, so that the next one
// tries others.
func (b *books) lost(c *call, row int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(c, row); p != nil {
		p.session, p.taken, p.held = 0, time.Now(), true
	}
}

// page returns the page of a row, or nil.
func (b *books) page(c *call, row int32) *page {
	layout, i := shard.Address(row)
	if k := b.of[c.Place]; k != nil && k.layout == layout {
		return &k.shards[i]
	}
	return nil
}

// choose returns the shards from which a session should try to take the count of c, the best first;
// none if no shard is known to have it. enough is how many are known to have it. A take should not
// leave less than level: then the shard is much emptier than was known, and another look is worth
// its cost.
func (b *books) choose(
	c *call, session uint32, clock func() time.Time,
) (layout shard.Layout, candidates []int, enough int, level float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.Place]
	if k == nil {
		return shard.Layout{}, nil, 0, 0
	}
	layout = k.layout
	shares := c.Shares(layout.Shards)
	now := time.Now()
	at := b.now(clock)
	own := -1
	for i := range k.shards {
		if session != 0 && k.shards[i].session == session &&
			(own < 0 || k.shards[i].taken.After(k.shards[own].taken)) {
			own = i
		}
	}
	view := func(i int) shard.View {
		p := &k.shards[i]
		left := shares.Of(i).At(p.Balance, at)
		if left.PausedUntil != algebra.Open && (!c.Reserve || c.Bounded) {
			left.Value = algebra.Closed
		}
		return shard.View{Tokens: left.Value, Busy: i != own && p.held && now.Sub(p.taken) < lately}
	}
	row := c.of(layout, 0)
	least := row.Demand() - c.Count
	if most, _ := spread.Largest(&c.Ask, &shares); c.Pausable() && c.Count > most {
		least = 0 // otherwise it is taken in parts
	}
	candidates, enough = shard.Choose(layout.Shards, own, c.Count, least, view, rand.IntN)
	for _, i := range candidates {
		level = min(level, view(i).Tokens-c.Count)
	}
	return layout, candidates, enough, level - muchWorse*c.Count
}

// now estimates the database's clock.
func (b *books) now(clock func() time.Time) int64 {
	if clock != nil {
		return clock().UnixMicro()
	}
	return time.Now().Add(b.ahead).UnixMicro()
}

// asked records the count of a call, and returns how much of it may be waited for in one shard:
// twice the mean count. A larger part would make the call, and later calls of that shard, run later
// than without shards.
func (b *books) asked(c *call) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.Place]
	if k == nil || c.Count == 0 {
		return 0
	}
	if k.mean == 0 {
		k.mean = c.Count
	}
	k.mean += (c.Count - k.mean) / 64
	return 2 * k.mean
}

// known returns the limit as it is remembered, or nil.
func (b *books) known(c *call, clock func() time.Time) *spread.Whole {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.Place]
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

// free returns a function that reports whether no other connection of this process is known to hold
// shard i.
func (b *books) free(c *call, layout shard.Layout, session uint32) func(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := make([]bool, layout.Shards)
	now := time.Now()
	for i := range free {
		p := b.page(c, layout.Row(i))
		free[i] = p == nil || !p.held || session != 0 && p.session == session ||
			now.Sub(p.taken) >= lately
	}
	return func(i int) bool { return free[i] }
}

// total estimates the sum of a limit's shards at an instant.
func (b *books) total(c *call, at int64) (total float64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.Place]
	if k == nil {
		return 0, false
	}
	shares := c.Shares(len(k.shards))
	for i := range k.shards {
		total += shares.Of(i).At(k.shards[i].Balance, at).Value
	}
	return total, true
}
