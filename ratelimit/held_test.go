package ratelimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// In a pool of one connection nobody waits for a held row for a while after it was waited for. Close
// waits for no more than its 5 seconds of that.
func TestCloseDoesNotWaitUntilAHeldRowMayBeWaitedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := withoutServer(t)
		w := waitingFor(t, "k")
		w.since = time.Now().Add(-time.Minute)
		c.held.hold(w, w.calls[0].Place, 0)
		<-w.done // after four seconds, after which it rests for twelve
		began := time.Now()
		c.Close()
		if d := time.Since(began); d > tripTime+inLine {
			t.Errorf("Close took %v", d)
		}
	})
}

// A row that somebody else may be inserting is inserted when it is due, also if other rows are due
// just before it.
func TestARowThatMayExistIsInsertedWhenItIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := withoutServer(t)
		first, suspect := waitingFor(t, "first"), waitingFor(t, "suspect")
		c.held.hold(first, first.calls[0].Place, 0)
		time.Sleep(time.Millisecond / 2)
		c.held.hold(suspect, suspect.calls[0].Place, 1)
		time.Sleep(2 * time.Millisecond)
		c.held.mu.Lock()
		if !c.held.runs[suspects] {
			t.Error("it is not inserted a millisecond after it was due")
		}
		c.held.mu.Unlock()
		c.Close()
	})
}

// withoutServer is a Coalesced whose pool tries for four seconds to make its only connection.
func withoutServer(t *testing.T) *Coalesced {
	t.Helper()
	cfg, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/none?pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		time.Sleep(4 * time.Second)
		return errors.New("no server")
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Coalesce(pool)
}

// waitingFor is a call for a row that was taken into a batch.
func waitingFor(t *testing.T, key string) *waiter {
	t.Helper()
	calls, err := resolveAll([]Request{MustDefine("held", TokenBucket{Rate: 10, Period: time.Second}).For(key)})
	if err != nil {
		t.Fatal(err)
	}
	w := &waiter{calls: calls, done: make(chan struct{}, 1)}
	w.state.Store(taken)
	return w
}
