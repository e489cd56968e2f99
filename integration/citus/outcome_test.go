package citus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
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
