package ratelimit

import (
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Above READ COMMITTED, callers of one key do not queue for its row: all but one of those who wait for it fail with 40001
// as soon as that one commits, and running them again blindly makes it worse. So a transaction that failed on a row queues
// for one of a few empty tables, by hash of the row, before it looks at anything: LOCK TABLE takes no snapshot. While a row
// is contended, the first attempts of this process queue as well.

// queues is the number of tables weir_queue_0, weir_queue_1, ... of the schema.
const queues = 8

const (
	contendedFor  = time.Second          // after the last conflict, or the last wait in a queue
	waited        = 2 * time.Millisecond // of a trip with a lock: it took longer than any does that need not wait
	mostContended = 1000
)

type contention struct {
	mu   sync.Mutex
	rows map[row]time.Time // until when
}

func (c *contention) note(r row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = make(map[row]time.Time)
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

// contended picks the rows of statements for which it is worth to queue.
func (c *contention) contended(statements []*statement) []row {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rows) == 0 {
		return nil
	}
	var rows []row
	for _, s := range statements {
		if !s.writes {
			continue
		}
		if until, ok := c.rows[s.c.row()]; ok && time.Now().Before(until) {
			rows = append(rows, s.c.row())
		}
	}
	return rows
}

// queuesOf returns the queues of rows, ascending: the order in which everybody locks them.
func queuesOf(rows []row) []int {
	qs := make([]int, len(rows))
	for i, r := range rows {
		h := fnv.New32a()
		_, _ = h.Write([]byte(r.name))
		_, _ = h.Write([]byte{0, byte(r.shard), byte(r.shard >> 8)}) // no name has a NUL
		_, _ = h.Write([]byte(r.key))
		qs[i] = int(h.Sum32() % queues)
	}
	slices.Sort(qs)
	return slices.Compact(qs)
}

// attempt is one run of a transaction under InTx. The methods of a nil attempt do nothing.
type attempt struct {
	handed    txn // what the callback gets
	l         *Limiter
	level     pgx.TxIsoLevel
	used      bool           // something was sent that may have taken the snapshot: too late to queue
	conflicts []row          // where this transaction has failed so far, on this attempt and earlier ones
	wrong     map[place]bool // limits of whose shards one was held in vain, then or now
	made      map[place]bool // limits that it has given another layout, which may roll back
	conflict  error          // the serialization failure that this attempt has met in a statement of ours
	undo      []func()       // what to do if it does not commit
	freed     []func()       // what to do once more when it has
	waited    time.Duration  // in queues
}

func (a *attempt) queued() bool {
	return a != nil && a.level != pgx.ReadCommitted && a.level != pgx.ReadUncommitted && !a.l.portable
}

// queueUp returns the lock that is to go ahead of statements, and the rows that it is for; or nil.
func (a *attempt) queueUp(l *Limiter, statements []*statement) (lock *statement, rows []row) {
	if !a.queued() {
		return nil, nil
	}
	if a.used {
		return nil, nil
	}
	a.used = true
	if l != a.l { // another limiter's tables may stand in another schema
		return nil, nil
	}
	rows = a.l.contention.contended(statements)
	if len(rows) == 0 {
		return nil, nil
	}
	return &statement{sql: a.l.sql.lock(queuesOf(rows))}, rows
}

// queuedUp notes how long a trip with a lock for rows took. While callers wait in the queue it is needed, though nobody
// conflicts any more: because of it.
func (a *attempt) queuedUp(rows []row, took time.Duration) {
	if a != nil {
		a.waited += took
	}
	if took < waited {
		return
	}
	for _, r := range rows {
		a.l.contention.note(r)
	}
}

// observe notes how a statement of ours ended.
func (a *attempt) observe(l *Limiter, s *statement, err error) {
	if a == nil || err == nil || !isConflict(err) {
		return
	}
	a.conflict = err
	if s == nil || s.c == nil || l != a.l {
		return
	}
	l.hot.conflict(s.c.name, max(1, s.c.layout), time.Now())
	if !a.queued() {
		return
	}
	if s.whole != nil && !s.writes { // one of several: next time it will be another
		return
	}
	a.l.contention.note(s.c.row())
	if !slices.Contains(a.conflicts, s.c.row()) {
		a.conflicts = append(a.conflicts, s.c.row())
	}
}
