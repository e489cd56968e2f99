package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	beginTogetherSQL = `BEGIN ISOLATION LEVEL READ COMMITTED`

	// If this process loses its connection between two trips, the server ends the transaction.
	idleSQL = `SET LOCAL idle_in_transaction_session_timeout = 5000`
)

// beginTogether begins transactions that need nothing else.
var beginTogether = []string{beginTogetherSQL}

// anyStatement is longer than nearly all statements take that wait for nothing.
const anyStatement = 50 * time.Millisecond

// patienceSQL limits how long a statement of the transaction waits for a lock. Some distributed
// engines have no lock_timeout, so the portable form limits the whole statement. That doubles with
// each try before, as the statement itself may take longer than d.
func (l *Limiter) patienceSQL(d time.Duration, tries int) string {
	timeout := "lock_timeout"
	if l.cfg.Portable {
		timeout, d = "statement_timeout", min(max(d, anyStatement)<<min(tries, 6), inLine<<mostDoubled)
	}
	return fmt.Sprintf("SET LOCAL %s = %d", timeout, d.Milliseconds())
}

// stuck reports whether a statement timed out while it waited for another transaction's lock.
func (l *Limiter) stuck(err error) bool {
	state := stateOf(err)
	return state == "55P03" || l.cfg.Portable && state == "57014" // lock_not_available, query_canceled
}

func (p *scheme) connect() error {
	err := p.c.watch.over(nil, 0, func(ctx context.Context) (err error) {
		p.conn, err = p.c.pool.Acquire(ctx)
		return err
	})
	if errors.Is(err, errSilent) {
		return fmt.Errorf("no connection of the pool was free within %v", tripTime)
	}
	return err
}

// trip makes a round trip.
func (p *scheme) trip(begin []string, commit bool, statements ...*statement) error {
	if p.conn == nil {
		if err := p.connect(); err != nil {
			return err
		}
	}
	p.trips++
	err := p.c.watch.over(p.lane, p.runner, func(ctx context.Context) error {
		return roundTrip(ctx, p.conn, begin, commit, statements...)
	})
	if err != nil {
		p.rollback()
		p.c.l.ranges.doubt(p.ranges, err)
	}
	return err
}

// rollback ends a transaction that wrote nothing, or has failed. A connection that cannot be used
// again goes back to the pool, which closes it.
func (p *scheme) rollback() {
	if p.conn == nil {
		return
	}
	if conn := p.conn.Conn(); !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		p.trips++
		_ = p.c.watch.over(p.lane, p.runner, func(ctx context.Context) error {
			_, err := conn.Exec(ctx, "ROLLBACK")
			return err
		})
	}
	if conn := p.conn.Conn(); conn.IsClosed() || conn.PgConn().TxStatus() != 'I' {
		p.release()
	}
}

func (p *scheme) release() {
	if p.conn != nil {
		p.conn.Release()
		p.conn = nil
	}
}

// watch cancels trips that take too long, and lets lanes go on without trips that are overdue. It
// checks all of them from time to time. With two timers for each trip, 64 callers of one key make
// 8 % fewer calls (BenchmarkCoalesced).
type watch struct {
	mu    sync.Mutex
	trips map[*underWay]struct{}
	timer *time.Timer
	armed bool
}

// underWay is a trip that has no answer yet.
type underWay struct {
	began  time.Time
	cancel context.CancelFunc
	lane   *lane // or nil
	runner int
}

// over runs fn, which is a trip or waits for a connection.
func (w *watch) over(n *lane, runner int, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t := &underWay{time.Now(), cancel, n, runner}
	w.mu.Lock()
	switch {
	case w.trips == nil:
		w.trips, w.timer = map[*underWay]struct{}{}, time.AfterFunc(overdue/2, w.look)
	case !w.armed:
		w.timer.Reset(overdue / 2)
	}
	w.trips[t], w.armed = struct{}{}, true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.trips, t)
		w.mu.Unlock()
	}()
	if err := fn(ctx); ctx.Err() == nil || err == nil {
		return err
	} else if errors.Is(err, ErrOutcomeUnknown) { // no caller's context has ended
		return unknown(errSilent)
	}
	return errSilent
}

var errSilent = fmt.Errorf("the database has not answered within %v", tripTime)

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t := range w.trips {
		switch age := time.Since(t.began); {
		case age > tripTime:
			t.cancel()
		case age > overdue && t.lane != nil:
			t.lane.replace(t.runner)
		}
	}
	if w.armed = len(w.trips) > 0; w.armed {
		w.timer.Reset(overdue / 2)
	}
}
