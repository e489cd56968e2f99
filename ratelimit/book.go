package ratelimit

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-go/weir/shard"
)

// books are what this process knows of the limits that are spread over shards: how many each has, and how they stood when
// they were last seen. It only ever chooses where to try first: whatever is decided is decided on what is in the database.
// A limit of which nothing is known is looked at, which takes a round trip more.
type books struct {
	mu    sync.Mutex
	of    map[place]*book
	pages int // of all books
	made  made
	ahead time.Duration // of the database's clock before this process's
}

// place names a limit and key.
type place struct{ name, key string }

// maker is a transaction that has given a limit another layout.
type maker struct {
	place
	transaction any
}

// made are the layouts that may roll back, of transactions that InTx has not begun: for each hash of a maker, the
// second in which one with that hash was last noted. So it has a fixed size whatever keys come. A maker may be taken
// for another with the same hash. What it looks at is then not noted, which costs its next call a look more.
type made struct {
	seed  maphash.Seed
	began time.Time
	at    []int32 // seconds after began, and one; 0: never
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
	mean   float64 // of what calls ask for, lately
}

// page is what is known of a shard.
type page struct {
	balance
	session uint32 // of the connection that took from it last, 0 if that is none of this process's
	taken   time.Time
	held    bool // by the transaction of that connection, as far as is known
}

const (
	mostPages = 100_000   // some megabytes
	mostMade  = 1 << 14   // hashes: 64 kB
	longest   = time.Hour // that a transaction is taken to last after it has made a layout

	// muchWorse is by how many counts a shard must stand worse than was known for a take to look again.
	// A look costs a trip or two. Several processes know a shard as it stood some ten takes of others ago:
	// with 2 counts one call in nine of sixteen processes looked again and made 12 % fewer reservations,
	// with no bound the last of a hundred was later than 5 units (BenchmarkHotReserve).
	muchWorse = 8

	// lately is for how long a shard is left to a transaction that took from it, of which is not known whether it has ended. It
	// is longer than most.
	lately = time.Second
)

func (c *call) place() place { return place{c.name, c.key} }

// sharded reports whether one of the calls is of a limit that is to have shards, or is known to have.
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
		if b.of[calls[i].place()] != nil {
			return true
		}
	}
	return false
}

// layout is what the layout of the limit of c is known to be.
func (b *books) layout(c *call) (layout shard.Layout, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.of[c.place()]; k != nil {
		return k.layout, true
	}
	return shard.Layout{}, false
}

// look notes how a limit stands.
func (b *books) look(c *call, w *whole, transaction any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch a, ok := transaction.(*attempt); {
	case ok && a.made[c.place()]:
		return
	case !ok && transaction != nil && b.made.has(maker{c.place(), transaction}):
		return
	}
	b.ahead = time.Duration(w.at-time.Now().UnixMicro()) * time.Microsecond
	k := b.of[c.place()]
	if k == nil || k.layout != w.Layout {
		k = b.open(c.place(), w.Layout)
	}
	now := time.Now()
	for i := range w.rows {
		// A take of this process that is not committed yet was not seen, and is known better.
		if p := &k.shards[i]; p.ts <= w.rows[i].ts || !p.held || now.Sub(p.taken) >= lately {
			p.balance = w.rows[i]
		}
	}
}

// open starts a book anew.
func (b *books) open(p place, layout shard.Layout) *book {
	if b.of == nil {
		b.of = make(map[place]*book)
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

func (b *books) close(p place) {
	if k := b.of[p]; k != nil {
		b.pages -= len(k.shards)
		delete(b.of, p)
	}
}

// making says that the layout of a limit is what a transaction makes of it. Nobody must know that before it has committed:
// if it rolls back those shards do not exist, and what does not exist is full.
func (b *books) making(c *call, transaction any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := transaction.(*attempt); ok {
		if a.made == nil {
			a.made = make(map[place]bool)
		}
		a.made[c.place()] = true
	} else {
		b.made.note(maker{c.place(), transaction})
	}
	b.close(c.place())
}

// forget says that nothing is known of a limit.
func (b *books) forget(c *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(c.place())
}

// took notes how a take by a session has left its shard.
func (b *books) took(row *call, left balance, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.page(row, row.shard)
	if p == nil {
		return
	}
	p.balance, p.session = left, session
	if session != 0 {
		p.taken, p.held = time.Now(), true
	}
}

// claim notes that a session is about to take from a shard: others are to try other ones. It has no
// effect if another session has done so.
func (b *books) claim(c *call, row int32, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(c, row); p != nil && session != 0 && (!p.held || time.Since(p.taken) >= lately) {
		p.session, p.taken, p.held = session, time.Now(), true
	}
}

// disclaim notes that it has not taken.
func (b *books) disclaim(c *call, row int32, session uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(c, row); p != nil && session != 0 && p.session == session {
		p.held = false
	}
}

// ended notes that the transaction has ended that took from rows.
func (b *books) ended(rows []call) {
	if len(rows) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range rows {
		if p := b.page(&rows[i], rows[i].shard); p != nil {
			p.held = false
		}
	}
}

// lost notes that a take from a shard has met a concurrent transaction: the next one is to try others.
func (b *books) lost(c *call, row int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(c, row); p != nil {
		p.session, p.taken, p.held = 0, time.Now(), true
	}
}

// page is what is known of a row, or nil.
func (b *books) page(c *call, row int32) *page {
	layout, i := shard.Address(row)
	if k := b.of[c.place()]; k != nil && k.layout == layout {
		return &k.shards[i]
	}
	return nil
}

// choose returns the shards from which a session should try to take what c asks for, the best first; none if none is known
// to have it. enough is how many are known to have it. A take that would leave less than level in the one that it comes to
// finds it much worse than it was known.
func (b *books) choose(
	c *call, session uint32, clock func() time.Time,
) (layout shard.Layout, candidates []int, enough int, level float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.place()]
	if k == nil {
		return shard.Layout{}, nil, 0, 0
	}
	layout = k.layout
	shares := c.shares(layout.Shards)
	now := time.Now()
	at := b.now(clock)
	own := -1
	for i := range k.shards {
		if session != 0 && k.shards[i].session == session && (own < 0 || k.shards[i].taken.After(k.shards[own].taken)) {
			own = i
		}
	}
	view := func(i int) shard.View {
		p := &k.shards[i]
		left := shares.of(i).at(p.balance, at)
		if left.pausedUntil != open && (!c.reserve || c.bounded) {
			left.value = closed
		}
		return shard.View{Tokens: left.value, Busy: i != own && p.held && now.Sub(p.taken) < lately}
	}
	row := c.of(layout, 0)
	least := row.demand() - c.count
	if most, _ := c.largest(&shares); c.pausable() && c.count > most {
		least = 0 // or it is to be taken in parts
	}
	candidates, enough = shard.Choose(layout.Shards, own, c.count, least, view, rand.IntN)
	for _, i := range candidates {
		level = min(level, view(i).Tokens-c.count)
	}
	return layout, candidates, enough, level - muchWorse*c.count
}

// now is the database's clock, as far as is known.
func (b *books) now(clock func() time.Time) int64 {
	if clock != nil {
		return clock().UnixMicro()
	}
	return time.Now().Add(b.ahead).UnixMicro()
}

// asked notes what a call asks for, and returns how much of it may be waited for in one shard: twice what calls ask for in the
// mean. More would have it run later than by one line, and all that come to that shard after it.
func (b *books) asked(c *call) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.place()]
	if k == nil || c.count == 0 {
		return 0
	}
	if k.mean == 0 {
		k.mean = c.count
	}
	k.mean += (c.count - k.mean) / 64
	return 2 * k.mean
}

// known is a limit as it is known to stand, or nil.
func (b *books) known(c *call, clock func() time.Time) *whole {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.place()]
	if k == nil {
		return nil
	}
	w := &whole{k.layout, make([]balance, len(k.shards)), b.now(clock)}
	for i := range k.shards {
		w.rows[i] = k.shards[i].balance
	}
	return w
}

// free tells of shards whether no other connection of this process holds them, as far as is known.
func (b *books) free(c *call, layout shard.Layout, session uint32) func(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := make([]bool, layout.Shards)
	now := time.Now()
	for i := range free {
		p := b.page(c, layout.Row(i))
		free[i] = p == nil || !p.held || session != 0 && p.session == session || now.Sub(p.taken) >= lately
	}
	return func(i int) bool { return free[i] }
}

// total is what the limit is worth, as far as is known, by the time at.
func (b *books) total(c *call, at int64) (total float64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.of[c.place()]
	if k == nil {
		return 0, false
	}
	shares := c.shares(len(k.shards))
	for i := range k.shards {
		total += shares.of(i).at(k.shards[i].balance, at).value
	}
	return total, true
}
