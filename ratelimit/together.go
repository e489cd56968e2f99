package ratelimit

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/ranges"
	"github.com/weir-go/weir/internal/limits/where"
)

// How calls are decided together.
//
// Most batches are predicted. If a row is expected to grant all its calls, their sum is taken from
// it. If it has denied calls lately, it is only read, and all its calls are denied. Both are sent
// in one trip, for all rows. Then rows that do not exist are inserted.
//
// Calls for which the prediction was wrong, calls of several limits, and reservations are decided
// in a second transaction of two trips: it locks their rows, decides one call after the other in
// Go, and writes the new balances.
//
// No statement waits for a row that another transaction holds: calls for such a row go to held.
// There is a rare exception, in Postgres: if the holder commits just when SKIP LOCKED looks, and
// another transaction has updated the row again by then, it waits for that one, as it locks all
// newer versions of the row (heap_lock_updated_tuple). A lock_timeout would end such a wait early,
// but a batch of one statement, which goes without BEGIN, would need three more statements for it.

// scheme is the plan for one batch.
type scheme struct {
	c     *Coalesced
	conn  *pgxpool.Conn
	takes []*standing // expected to grant
	looks []*standing // expected to deny
	// fresh: calls whose row does not exist; late: calls for the second transaction
	fresh, late []*waiter
	alone       []*waiter      // to be decided one by one
	trips       int            // round trips so far
	ranges      *ranges.Ranges // as they were known when it began

	lane   *lane        // the lane whose goroutine decides; nil for calls from held, which all go
	runner int          // to the second transaction
	wait   *where.Place // if not nil, the second transaction waits for this row
}

// decide answers the calls of p.late.
func (c *Coalesced) decide(p *scheme) {
	defer p.release()
	err := errClosedCoalesced
	if !c.ended.Load() {
		err = p.connect()
	}
	if err == nil && c.l.cfg.Citus {
		p.readRanges()
		p.ranges = c.l.ranges.known.Load()
	}
	if c.ended.Load() {
		err = errClosedCoalesced
	}
	some := p.late
	p.late = nil
	here := some[:0]
	for _, w := range some {
		switch {
		case p.lane != nil && c.held.join(w):
		case !w.state.CompareAndSwap(queued, taken):
			c.decided()
		default:
			w.room()
			here = append(here, w)
		}
	}
	for _, w := range here {
		w.together = len(here)
	}
	if err != nil { // it concerns each of them alike, so none is decided alone
		for _, w := range here {
			w.err = err
			p.answer(w)
		}
		return
	}
	p.plan(here)
	p.foreseen()
	p.created()
	p.locked()
	p.decideAlone()
}

// plan predicts which rows will grant, and which will deny.
func (p *scheme) plan(some []*waiter) {
	c := p.c
	plain := make([]*waiter, 0, len(some))
	var late map[where.Place]bool // rows of calls that are not plain
	for _, w := range some {
		switch {
		case c.l.sharded(w.calls):
			p.alone = append(p.alone, w)
		case p.lane != nil && len(w.calls) == 1 && w.calls[0].plain():
			plain = append(plain, w)
		default:
			p.late = append(p.late, w)
			if late == nil {
				late = map[where.Place]bool{}
			}
			for i := range w.calls {
				late[w.calls[i].Place] = true
			}
		}
	}
	slices.SortStableFunc(plain, func(a, b *waiter) int {
		return a.calls[0].Compare(&b.calls[0].Row)
	})
	n := 0
	for i, w := range plain {
		if i == 0 || w.calls[0].Place != plain[i-1].calls[0].Place {
			n++
		}
	}
	rows := make([]standing, n)
	for i, k := 0, 0; i < len(plain); k++ {
		r, first, same := &rows[k], &plain[i].calls[0], true
		r.c = first
		from := i
		for ; i < len(plain) && plain[i].calls[0].Place == first.Place; i++ {
			w := plain[i]
			w.rows[0] = r
			r.count += w.calls[0].Count
			same = same && w.calls[0].Rule == first.Rule
		}
		r.waiters = plain[from:i:i]
		switch {
		case !same || late[first.Place]:
			p.late = append(p.late, r.waiters...)
		case c.l.expected(r.waiters[0].calls):
			p.looks = append(p.looks, r)
		case r.count > first.Capacity || first.Capacity-(first.Capacity-r.count) != r.count:
			p.late = append(p.late, r.waiters...)
		default:
			p.takes = append(p.takes, r)
		}
	}
}

// plain reports whether the call needs nothing but that its tokens are there.
func (c *call) plain() bool { return !c.Reserve && c.Leave == 0 }

// foreseen runs the first transaction: takes and looks as planned.
func (p *scheme) foreseen() {
	c := p.c
	if len(p.takes)+len(p.looks) == 0 {
		return
	}
	send := func(begin []string, makes bool) error {
		var statements []*statement
		if len(p.takes) > 0 {
			statements = c.l.takeMany(p.takes, makes)
		}
		looks := p.looks
		for _, r := range p.takes {
			if r.waiters[0].tries > 0 { // the row was held, and may still be
				looks = append(looks, r)
			}
		}
		if len(looks) > 0 {
			statements = append(statements, c.l.lookMany(looks)...)
		}
		return p.trip(begin, true, statements...)
	}
	var err error
	makes := !c.l.cfg.Portable && len(p.takes) > 0 && c.unmade.Load() < mostUnmade
	if makes {
		c.unmade.Add(1)
		err = send([]string{beginTogetherSQL, c.l.patienceSQL(inserting, 0)}, true)
	}
	if !makes || c.l.stuck(err) || stateOf(err) == "23505" {
		err = send(beginTogether, false)
	}
	if err != nil {
		var some []*waiter
		for _, r := range p.takes {
			some = append(some, r.waiters...)
		}
		p.fail(err, some)
		for _, r := range p.looks { // nothing was taken of these
			p.late = append(p.late, r.waiters...)
		}
		return
	}
	var others, unseen []*standing
	for _, r := range p.takes {
		if !r.taken {
			others = append(others, r)
			if r.at == 0 {
				unseen = append(unseen, r)
			}
			continue
		}
		if r.made {
			c.unmade.Store(0)
		}
		rest := r.count
		for _, w := range r.waiters {
			b := r.left
			rest -= w.calls[0].Count
			b.Value += rest
			w.grant(0, b)
			p.answer(w)
		}
	}
	if len(unseen) > 0 && p.trip(beginTogether, true, c.l.lookMany(unseen)...) != nil {
		for _, r := range unseen {
			p.late = append(p.late, r.waiters...)
		}
		others = slices.DeleteFunc(others, func(r *standing) bool { return slices.Contains(unseen, r) })
	}
	for _, r := range p.looks {
		p.looked(r, false)
	}
	for _, r := range others {
		p.looked(r, true)
	}
}

// looked answers the calls for a row that was only read, if it denies all of them. If it has enough
// for all of them, but the statement that tried to take from it did not, another transaction holds
// it.
func (p *scheme) looked(r *standing, tried bool) {
	denied := true
	for _, w := range r.waiters {
		granted, closed := w.judge()
		if closed {
			p.alone = append(p.alone, r.waiters...)
			return
		}
		p.c.l.noted(&w.calls[0], &w.verdicts[0])
		denied = denied && !granted
	}
	for _, w := range r.waiters {
		switch {
		case denied:
			p.answer(w)
		case !r.found:
			p.fresh = append(p.fresh, w)
		case tried && r.c.At(r.left, r.at).Value >= r.count:
			p.hold(w, w.calls[0].Place, 0)
		default:
			p.late = append(p.late, w)
		}
	}
}

// heldUp handles a call for a row that another transaction holds. If the committed balances deny
// it, it is denied. Otherwise it waits.
func (p *scheme) heldUp(w *waiter) {
	if granted, _ := w.judge(); !granted {
		p.noted(w)
		return
	}
	i := slices.IndexFunc(w.rows, (*standing).held)
	p.hold(w, w.calls[i].Place, 0)
}

// noted answers a call, and remembers its denial.
func (p *scheme) noted(w *waiter) {
	for i := range w.calls {
		p.c.l.noted(&w.calls[i], &w.verdicts[i])
	}
	p.answer(w)
}

func (p *scheme) hold(w *waiter, at where.Place, most int) {
	w.trips += p.trips
	p.c.held.hold(w, at, most)
}

// held reports whether another transaction has locked the row.
func (r *standing) held() bool { return r.found && !r.locked }

// grant records that the i-th of the calls was granted, and left its row with b.
func (w *waiter) grant(i int, b algebra.Balance) {
	w.verdicts[i], w.took[i].Left = w.calls[i].Granted(b), b.Left()
}

// judge decides on rows as they were read, and takes nothing. It cannot decide if one of them is
// closed.
func (w *waiter) judge() (granted, closed bool) {
	for i, r := range w.rows {
		if r.closed() {
			return false, true
		}
		w.verdicts[i] = w.calls[i].Decide(r.left, r.at)
	}
	if algebra.AllOrNone(w.verdicts) {
		return true, false
	}
	clear(w.took)
	return false, false
}

// take takes as judge has just decided, from rows that are locked by this transaction, or do not
// exist.
func (w *waiter) take() {
	for i, r := range w.rows {
		r.c, r.left, r.changed = &w.calls[i], w.verdicts[i].After, true
		w.grant(i, r.left)
	}
}

// created inserts the rows that do not exist, in one trip.
func (p *scheme) created() {
	if len(p.fresh) == 0 {
		return
	}
	var rows []*standing
	for _, w := range p.fresh {
		if k := len(rows); k == 0 || rows[k-1] != w.rows[0] {
			rows = append(rows, w.rows[0])
		}
	}
	p.c.unmade.Store(0)
	p.late = append(p.late, p.put(p.fresh, rows, beginTogetherSQL)...)
}

// locked runs the second transaction: it locks rows, decides on them, and writes them.
func (p *scheme) locked() {
	for i := 1; len(p.late) > 0; i++ {
		some := p.late
		p.late = nil
		rows := rowsOf(some)
		begin := []string{beginTogetherSQL, idleSQL}
		statements := append(p.c.l.lockMany(rows), p.c.l.lookMany(rows)...)
		if p.wait != nil {
			begin = append(begin, p.c.l.patienceSQL(some[0].patience(), 0))
			statements = slices.Insert(statements, 0, p.c.l.waitFor(*p.wait))
		}
		err := p.trip(begin, false, statements...)
		switch {
		case p.wait != nil && p.c.l.stuck(err):
			for _, w := range some {
				w.waits++
				w.since = time.Now()
				p.hold(w, *p.wait, 0)
			}
		case err != nil:
			p.fail(err, some)
		default:
			p.late = p.put(some, rows)
		}
		if i == maxAttempts {
			p.alone, p.late = append(p.alone, p.late...), nil
		}
	}
}

// fail answers calls with an error. If the database answered with it, one of them may have caused
// it: then each is decided alone, to find out. So is one call, if it may succeed then.
func (p *scheme) fail(err error, some []*waiter) {
	single := isConflict(err) || p.c.l.cfg.Citus && isRefused(err)
	if (len(some) > 1 || single) && isRolledBack(err) {
		p.alone = append(p.alone, some...)
		return
	}
	for _, w := range some {
		w.err = err
		p.answer(w)
	}
}

func (p *scheme) answer(w *waiter) {
	// The caller has left, so its tokens are given back. Once this connection is free, it is used.
	if w.state.Load() == left {
		p.release()
	}
	w.trips += p.trips
	p.c.answer(w)
}
