package citus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A worker that is lost may have committed the statement that was under way, so the caller is not
// told that nothing was taken.
func TestATakeThatWasUnderWayWhenItsWorkerWasLostHasAnUnknownOutcome(t *testing.T) {
	c, pool := killable(t)
	take := limiter(t, ratelimit.Config{Citus: true}).Autocommit(pool)
	port := scan[int](t, pool, `SELECT n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid)
		WHERE p.shardid = get_shard_id_for_distribution_column('weir_balance', 'k')`)
	var worker *pgserver.Server
	for _, node := range c {
		if strings.Contains(node.URL(), fmt.Sprint(":", port, "/")) {
			worker = node
		}
	}
	on, err := pgxpool.New(t.Context(), worker.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer on.Close()
	// The worker commits, and answers when a standby has done so, too. There is none.
	exec(t, on, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`)
	taken, deadline := 0.0, time.Now().Add(patience)
	answer := make(chan error, 1)
	begin := func() {
		taken++
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			answer <- take.Consume(ctx, budget.For("k"))
		}()
	}
	begin()
	for {
		waits := scan[bool](t, on, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND query LIKE '%weir_balance%')`)
		if waits {
			break
		}
		select {
		case err := <-answer: // the worker did not know of its standby yet
			if err != nil {
				t.Fatal(err)
			}
			begin()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("no take waits for the standby")
		}
	}
	if err := worker.Kill(); err != nil {
		t.Fatal(err)
	}
	told := <-answer
	if !errors.Is(told, ratelimit.ErrOutcomeUnknown) {
		t.Errorf("got %v, want an unknown outcome", told)
	}
	t.Log(told)

	if err := worker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	state, err := take.Value(t.Context(), budget.For("k"))
	if left := capacity - taken; err != nil || state.Value >= left+0.9 { // a token comes an hour
		t.Errorf("%v and %v, want that the take was committed, and %v are left", state.Value, err, left)
	}
}

// A coordinator that is killed between the two phases of a COMMIT leaves the key's row locked on its
// worker, and no other. When Citus recovers, token and row are both there.
func TestAKillBetweenTheTwoPhasesHoldsUpOnlyTheKey(t *testing.T) {
	c, pool := pgtest.OwnCluster(t)
	exec(t, pool, `ALTER SYSTEM SET citus.recover_2pc_interval = -1`, `SELECT pg_reload_conf()`,
		`CREATE TABLE work (id bigint PRIMARY KEY)`)
	l := limiter(t, ratelimit.Config{Citus: true})
	port := portOf(t, pool, "k0")
	var on *pgxpool.Pool // the worker
	for _, node := range c[1:] {
		if strings.Contains(node.URL(), fmt.Sprint(":", port, "/")) {
			var err error
			if on, err = pgxpool.New(t.Context(), node.URL()); err != nil {
				t.Fatal(err)
			}
			defer on.Close()
		}
	}
	const prepared = `SELECT count(*) FROM pg_prepared_xacts`
	// The coordinator commits, and tells the worker when a standby has done so, too. There is none.
	exec(t, pool, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`)
	begun, deadline := 0, time.Now().Add(patience)
	answer := make(chan error, 1)
	begin := func() {
		begun++
		id := begun
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			answer <- l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, budget.For("k0")); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `INSERT INTO work VALUES ($1)`, id)
				return err
			})
		}()
	}
	begin()
	for !scan[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`) ||
		scan[int](t, on, prepared) == 0 {
		select {
		case err := <-answer: // the coordinator did not know of its standby yet
			if err != nil {
				t.Fatal(err)
			}
			begin()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("no transaction is between its two phases")
		}
	}
	if err := c[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if told := <-answer; !errors.Is(told, ratelimit.ErrOutcomeUnknown) {
		t.Errorf("got %v, want an unknown outcome", told)
	}
	if err := c[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	exec(t, pool, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	if n := scan[int](t, on, prepared); n != 1 {
		t.Fatalf("the worker has %d prepared transactions, want one", n)
	}

	others := 0
	for i := 1; others < 4; i++ {
		key := fmt.Sprint("k", i)
		if portOf(t, pool, key) != port {
			continue
		}
		others++
		for name, take := range takesByRoad(t, l, pool) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if res, err := take(ctx, budget.For(key)); err != nil || !res.OK {
				t.Errorf("%s of another key of that worker: %+v, %v", name, res, err)
			}
			cancel()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	take := l.Autocommit(pool)
	if err := take.Consume(ctx, budget.For("k0")); err == nil {
		t.Error("the key was taken from before its transaction had ended")
	}
	exec(t, pool, `ALTER SYSTEM SET citus.recover_2pc_interval = '1s'`, `SELECT pg_reload_conf()`)
	until(t, "Citus recovers", func() bool { return scan[int](t, on, prepared) == 0 })
	state, err := take.Value(t.Context(), budget.For("k0"))
	rows := scan[int](t, pool, `SELECT count(*) FROM work`)
	if left := capacity - float64(begun); err != nil || rows != begun || state.Value < left || state.Value >= left+0.9 {
		t.Errorf("%v (%v) are left, and %d rows: want %v and %d", state.Value, err, rows, left, begun)
	}
}
