package ratelimit

import (
	"context"
	"errors"
	"fmt"
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
	// conflict is one of ours: the transaction must not commit, whatever fn does with the error
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
	// the database's transaction has not failed
	a.yielded = a.yielded || errors.As(err, new(conflict))
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

// fresh reports whether a read would see all that is committed by now, as far as is known. A
// transaction that the caller began counts as fresh: nothing is known of it. One of InTx above READ
// COMMITTED has its snapshot once it was used. A read would then still see a denial that is over,
// while a take would find the newer row.
func (x executor) fresh() bool {
	a := x.attempt
	return a == nil || !a.used || !a.keepsSnapshot()
}

// alone reports whether nothing was sent in the transaction yet, neither by Weir nor by the caller.
// So it has no snapshot, and has written nothing. It is known only if InTx has yet to send BEGIN.
func (x executor) alone() bool { return x.single || x.lazy != nil && !x.lazy.begun }

// aside runs looks, before the transaction begins if it can: see canLookAside. A call that is
// denied this way needs no BEGIN and no ROLLBACK.
func (x executor) aside(ctx context.Context, looks []*statement, exact bool) error {
	if !x.canLookAside(exact) {
		return x.run(ctx, looks)
	}
	x.count()
	_, err := sendBatch(ctx, x.lazy.conn, looks)
	return err
}

// canLookAside reports whether InTx has yet to begin the transaction. With exact it is false for a
// transaction that runs again, because the balances may change once more before that begins.
func (x executor) canLookAside(exact bool) bool {
	t := x.lazy
	return t != nil && !t.begun && t.failed == nil && t.unsure == nil &&
		(!exact || !x.attempt.again)
}

// restart rolls back a transaction in which nothing was sent except by the current call, and runs
// looks in the same trip. The next statement begins the transaction again. restart reports whether
// it has done so. It does nothing if the transaction has confirmed a denial, as the callback may
// act on that, or has made a layout, which it would roll back as well.
func (x executor) restart(ctx context.Context, looks []*statement) (bool, error) {
	t, a := x.lazy, x.attempt
	if t == nil || len(a.made) > 0 || !t.begun || t.tx != nil || t.closed || t.failed != nil ||
		t.locked || t.unsure != nil {
		return false, nil
	}
	x.count()
	_, err := sendBatch(ctx, t.conn, append([]*statement{{sql: "ROLLBACK"}}, looks...))
	if err != nil {
		if t.conn.PgConn().TxStatus() == 'I' { // what fn sends now would commit by itself
			t.failed = fmt.Errorf("ratelimit: rolled back, and could not begin again: %w", hint(err))
		}
		return false, err
	}
	a.l.books.Ended(a.shards, false) // what looks have read counts, and not what was rolled back
	t.begun, t.to, a.used, a.conflict, a.shards = false, nil, false, nil, nil
	a.yielded = false
	return true, nil
}

// doubts reports whether a denial was read by aside and needs a confirmation if the transaction
// begins after all: it does if that keeps one snapshot. Otherwise each statement reads anew.
func (x executor) doubts() bool {
	return x.lazy != nil && !x.lazy.begun && x.attempt.keepsSnapshot()
}
