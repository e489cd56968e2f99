package faults

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/ratelimit"
)

// setUpPair is setUp on a primary with a standby, which has the options. The application's URL has
// both, with target_session_attrs=read-write. If synchronous, COMMIT waits until the standby has
// the transaction on its disk.
func setUpPair(t *testing.T, synchronous bool, standbys ...pgserver.Option) *fixture {
	t.Helper()
	options := durably()
	if synchronous {
		// From the start: a setting that is changed later reaches some backends before others.
		options = append(options, pgserver.Setting("synchronous_standby_names", "*"))
	}
	start := func(s *pgserver.Server, err error) *pgserver.Server {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	primary := start(pgserver.Start(t.Context(), options...))
	if _, err := exec.LookPath(primary.Bin("pg_basebackup")); err != nil {
		fmt.Printf("faults: %s: skipped: a standby needs pg_basebackup: %v\n", t.Name(), err)
		t.Skipf("skipped: a standby needs pg_basebackup: %v", err)
	}
	standby := start(primary.Standby(t.Context(), append(durably(), standbys...)...))
	return setUpOn(t, primary, standby)
}

// takeOver promotes the standby, after the primary's end. From then on it is the server of the
// fixture.
func (f *fixture) takeOver(t *testing.T) {
	t.Helper()
	if err := f.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.server = f.standby
}

// cutReplication freezes the process that sends to the standby: the standby gets nothing that is
// committed from now on.
func (f *fixture) cutReplication(t *testing.T) (mend func()) {
	t.Helper()
	var sender int
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		for {
			err := conn.QueryRow(ctx, `SELECT pid FROM pg_stat_replication WHERE state = 'streaming'`).Scan(&sender)
			if !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			if _, err := conn.Exec(ctx, `SELECT pg_sleep(0.01)`); err != nil { // between two polls
				return err
			}
		}
	})
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(sender, s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	return func() { signal(syscall.SIGCONT) }
}

// With synchronous replication a takeover loses nothing that a caller was told of.
func TestASynchronousStandbyTakesOver(t *testing.T) {
	t.Parallel()
	ours(t)
	enough := rounds(t, 1)
	for n := 1; n == 1 || !enough(n-1); n++ {
		t.Run(fmt.Sprintf("round=%d", n), func(t *testing.T) {
			f, began := setUpPair(t, true), time.Now()
			f.waitsForItsStandby(t)
			stop := f.load.start(t.Context())
			t.Cleanup(stop)
			f.callers.await(t, granted, 100)
			if err := f.server.Kill(); err != nil {
				t.Fatal(err)
			}
			f.callers.await(t, away, 20)
			f.mustRefuse(t)
			f.takeOver(t)
			f.callers.await(t, granted, 100)
			stop()
			f.rounds++
			f.mustBalance(t)
			// gaveUp: see waitsForItsStandby
			f.report(t, fault{hits: []class{away}, allowed: []class{unknown, gaveUp}}, time.Since(began))
		})
	}
}

// waitsForItsStandby checks what a caller is told whose COMMIT waits for a standby that does not
// answer.
func (f *fixture) waitsForItsStandby(t *testing.T) {
	t.Helper()
	mend := f.cutReplication(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	o := op{ID: "waits", Works: []take{{account{"bucket", "waits"}, 2}}}
	f.callers.begin(o)
	err := f.app.do(ctx, &o)
	f.callers.end(resultOf(o.ID, err))
	mend()
	// gaveUp: on a busy machine the time may be over before COMMIT is sent
	if c := classify(err); c != unknown && c != gaveUp {
		t.Errorf("a COMMIT that waits for the standby: %v, want ErrOutcomeUnknown", err)
	}
}

// With asynchronous replication a takeover loses the last transactions, each of them whole: with
// its tokens and its jobs.
func TestAnAsynchronousStandbyTakesOver(t *testing.T) {
	t.Parallel()
	ours(t)
	enough := rounds(t, 1)
	for n := 1; n == 1 || !enough(n-1); n++ {
		t.Run(fmt.Sprintf("round=%d", n), func(t *testing.T) {
			f, began := setUpPair(t, false), time.Now()
			stop := f.load.start(t.Context())
			t.Cleanup(stop)
			f.callers.await(t, granted, 100)
			old := f.callers.acknowledged()
			f.hasReachedItsStandby(t)
			f.cutReplication(t) // for good: so that something is lost
			f.callers.await(t, granted, 100)
			if err := f.server.Kill(); err != nil {
				t.Fatal(err)
			}
			f.callers.await(t, away, 20)
			f.mustRefuse(t)
			stop()
			acknowledged := f.callers.doubt()
			f.takeOver(t)

			stop = f.load.start(t.Context())
			t.Cleanup(stop)
			f.callers.await(t, granted, 100)
			stop()
			f.rounds++
			f.mustBalance(t)
			for _, r := range old {
				if !r.there {
					t.Errorf("a transaction is lost that was on the standby's disk: %+v", r)
				}
			}
			lost := 0
			for _, r := range acknowledged {
				if !r.there {
					lost++
				}
			}
			summary :=
				fmt.Sprintf("faults: %s: of %d transactions that were acknowledged before the takeover %d are lost, each whole",
					t.Name(), len(acknowledged), lost)
			t.Log(summary)
			fmt.Println(summary)
			if lost == 0 {
				t.Error("nothing was lost, though nothing was sent to the standby")
			}
			f.report(t, fault{hits: []class{away}, allowed: []class{unknown}}, time.Since(began))
		})
	}
}

// hasReachedItsStandby waits until the standby has on its disk what is committed by now.
func (f *fixture) hasReachedItsStandby(t *testing.T) {
	t.Helper()
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		var now string
		if err := conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&now); err != nil {
			return err
		}
		for {
			var has bool
			const reached = `SELECT coalesce(bool_or(flush_lsn >= $1::pg_lsn), false) FROM pg_stat_replication, pg_sleep(0.01)`
			if err := conn.QueryRow(ctx, reached, now).Scan(&has); err != nil || has {
				return err
			}
		}
	})
}

// acknowledged returns the records of what was granted so far.
func (c *callers) acknowledged() (all []*record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.records {
		if r.class == granted {
			all = append(all, r)
		}
	}
	return all
}

// doubt takes back what callers were told so far: a transaction that was acknowledged may be lost,
// and what was denied may be there again. It returns the records of those that were acknowledged.
func (c *callers) doubt() (acknowledged []*record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, r := range c.records {
		switch r.class {
		case granted:
			r.class, r.text = unknown, ratelimit.ErrOutcomeUnknown.Error()
			acknowledged = append(acknowledged, r)
		case denied:
			delete(c.records, id) // what is there of it is then found as what nobody asked for
		}
	}
	return acknowledged
}
