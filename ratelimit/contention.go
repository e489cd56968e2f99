package ratelimit

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/where"
	"github.com/weir-go/weir/shard"
)

// Above READ COMMITTED, callers do not queue for a row. As soon as the transaction that holds it
// commits, all that wait for it fail with 40001, and to run them again at once makes it worse. So a
// transaction that has lost a row waits for the advisory lock of that row before it takes its
// snapshot: see statements.queue. While a row is contended, first attempts of this process wait
// there as well.
//
// Only a conflict on the row makes it contended. If a wait did so too, the queue would keep itself
// alive.

const (
	// after the last conflict: long enough for callers that pause for a second
	contendedFor  = 2500 * time.Millisecond
	mostContended = 1000
	// rows per transaction: their locks are columns of one statement, and Postgres allows 1,664
	mostQueued   = 100
	starvesAfter = 8 // attempts that have lost a row
)

type contention struct {
	mu   sync.Mutex
	rows map[where.Row]time.Time // until when each is contended
	// how many transactions of InSQLTx have lost it starvesAfter times, and still want it
	starved map[where.Row]int
}

// starves makes first attempts of InSQLTx queue for rows until done is called.
//
// Such an attempt learns which rows it takes only after its transaction has begun, which is too
// late to queue. So it takes a row ahead of transactions that queue for it. That keeps the row
// busy, but a queued transaction may lose the row again and again.
func (c *contention) starves(rows []where.Row) (done func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.starved == nil {
			c.starved = make(map[where.Row]int)
		}
		for _, r := range rows {
			if c.starved[r] += n; c.starved[r] == 0 {
				delete(c.starved, r)
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// starving returns the rows of statements for which another transaction starves.
func (c *contention) starving(statements []*statement) (rows []where.Row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.starved) == 0 {
		return nil
	}
	for _, s := range statements {
		if !s.writes || len(rows) == mostQueued {
			continue
		}
		if r := s.c.Row; c.starved[r] > 0 {
			rows = append(rows, r)
		}
	}
	return rows
}

func (c *contention) note(r where.Row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = make(map[where.Row]time.Time)
	}
	now := time.Now()
	if len(c.rows) >= mostContended {
		for r, until := range c.rows {
			if now.After(until) {
				delete(c.rows, r)
			}
		}
	}
	if _, known := c.rows[r]; known || len(c.rows) < mostContended {
		c.rows[r] = now.Add(contendedFor)
	}
}

// contended returns the rows of statements that are worth queueing for.
func (c *contention) contended(statements []*statement) []where.Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rows) == 0 {
		return nil
	}
	var rows []where.Row
	for _, s := range statements {
		if !s.writes || len(rows) == mostQueued {
			continue
		}
		if until, ok := c.rows[s.c.Row]; ok && time.Now().Before(until) {
			rows = append(rows, s.c.Row)
		}
	}
	return rows
}

// attempt is one run of a transaction under InTx. The methods of a nil attempt do nothing.
type attempt struct {
	handed txn // what the callback is given
	l      *Limiter
	level  pgx.TxIsoLevel
	// it can queue: above READ COMMITTED, on a connection on which InTx sends BEGIN, and not
	// Portable
	queues bool
	again  bool // an earlier attempt was rolled back
	// something was sent that may have taken the snapshot: too late to queue
	used    bool
	foreign bool // the callback has sent something of its own
	// rows that this transaction has lost, in this attempt and earlier ones
	conflicts []where.Row
	made      map[where.Place]bool // limits whose layout it has changed, which may roll back
	conflict  error                // the serialization failure of a statement of Weir in this attempt
	// conflict is errYielded: the transaction must not commit, whatever fn does with the error
	yielded bool
	undo    []func()      // what to do if it rolls back
	freed   []func()      // what to do after COMMIT
	shards  []where.Row   // the shards that it has taken from
	queued  time.Duration // how long it has queued; only in InSQLTx, where no lazyTx measures it
}

// keepsSnapshot reports whether all statements of the transaction read the same snapshot.
func (a *attempt) keepsSnapshot() bool {
	return a.level != pgx.ReadCommitted && a.level != pgx.ReadUncommitted
}

// queueFor returns the rows to queue for before statements: those that are contended, if the
// attempt has sent nothing yet.
func (a *attempt) queueFor(l *Limiter, statements []*statement) []where.Row {
	// the tables of another limiter may be in another schema
	if a == nil || !a.queues || a.used || l != a.l {
		return nil
	}
	return l.contention.contended(statements)
}

var errYielded = errors.New(
	"another transaction has waited longer for this balance: this one runs again after it",
)

// yields returns an error if this first attempt of InSQLTx is about to take a row for which another
// transaction starves. The transaction then runs again, and its next attempt queues for the row.
func (a *attempt) yields(l *Limiter, statements []*statement) error {
	if a == nil || a.again || !a.queues || l != a.l || l.maxAttempts == 1 {
		return nil
	}
	rows := l.contention.starving(statements)
	if len(rows) == 0 {
		return nil
	}
	a.conflicts, a.conflict, a.yielded = rows, errYielded, true
	return errYielded
}

// observe records the conflict if a statement of Weir failed with one.
func (a *attempt) observe(l *Limiter, s *statement, err error) {
	if a == nil || err == nil || !isConflict(err) {
		return
	}
	a.conflict = err
	if s == nil || s.c == nil || l != a.l {
		return
	}
	if !isLostRow(err) {
		return
	}
	layout, _ := shard.Address(max(0, s.c.Shard)) // a head has -1
	l.hot.conflict(s.c.Name, layout.Shards, time.Now())
	if !a.queues {
		return
	}
	if s.whole != nil && !s.writes { // one of several shards: the next attempt takes from another
		return
	}
	a.l.contention.note(s.c.Row)
	if len(a.conflicts) < mostQueued && !slices.Contains(a.conflicts, s.c.Row) {
		a.conflicts = append(a.conflicts, s.c.Row)
	}
}
