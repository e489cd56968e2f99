package ratelimit

import (
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

const (
	// rows per transaction: their locks are columns of one statement, and Postgres allows 1,664
	mostQueued   = 100
	starvesAfter = 8 // attempts that have lost a row to another transaction
	mostLost     = 8 // attempts that failed, as the connection had lost a prepared statement
)

// attempt is one run of a transaction under InTx. The methods of a nil attempt do nothing.
type attempt struct {
	l     *Limiter
	level pgx.TxIsoLevel
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
	queued  time.Duration // how long it has queued for rows: the time of that round trip
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
	return queueable(statements, l.contended.Has)
}

// queueable returns the rows that statements write and for which is holds.
func queueable(statements []*statement, is func(where.Row) bool) (rows []where.Row) {
	for _, s := range statements {
		if s.writes && len(rows) < mostQueued && is(s.c.Row) {
			rows = append(rows, s.c.Row)
		}
	}
	return rows
}

var errYielded = errors.New(
	"another transaction has waited longer for this balance: this one runs again after it",
)

// yields returns an error if this first attempt of InSQLTx is about to take a row for which another
// transaction starves. The transaction then runs again, and its next attempt queues for the row.
//
// Such an attempt learns which rows it takes only after its transaction has begun, which is too
// late to queue. So it takes a row ahead of transactions that queue for it. That keeps the row
// busy, but a queued transaction may lose the row again and again.
func (a *attempt) yields(l *Limiter, statements []*statement) error {
	if a == nil || a.again || !a.queues || l != a.l || l.cfg.MaxAttempts == 1 {
		return nil
	}
	rows := queueable(statements, l.contended.Starves)
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
	if s == nil || s.c == nil || l != a.l || !isLostRow(err) {
		return
	}
	layout, _ := shard.Address(max(0, s.c.Shard)) // a head has -1
	l.hot.Conflict(s.c.Name, layout.Shards, time.Now())
	// of several shards the next attempt takes from another
	if !a.queues || s.whole != nil && !s.writes {
		return
	}
	a.l.contended.Note(s.c.Row)
	if len(a.conflicts) < mostQueued && !slices.Contains(a.conflicts, s.c.Row) {
		a.conflicts = append(a.conflicts, s.c.Row)
	}
}
