package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
)

// inserting is a process that reserves jobs for the next spread, and then waits for its end.
const inserting kind = "inserting"

const (
	countEnv  = "WEIR_FAULTS_JOBS"
	spreadEnv = "WEIR_FAULTS_SPREAD"
)

// reserveAhead is what that process does.
func reserveAhead(url, name string) error {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	a, err := newApp(pool, ratelimit.Config{})
	if err != nil {
		return err
	}
	s := &shift{fixture: &fixture{name: cfg.ConnConfig.RuntimeParams["search_path"], pool: pool,
		app: a, callers: newCallers()}, prefix: name}
	if err := s.connectRiver(false); err != nil {
		return err
	}
	spread, err := time.ParseDuration(os.Getenv(spreadEnv))
	if err != nil {
		return err
	}
	var jobs int
	if _, err := fmt.Sscan(os.Getenv(countEnv), &jobs); err != nil {
		return err
	}
	began := time.Now()
	last := began.Add(spread)
	for n := range jobs { // the last one that is due comes first
		after := max(time.Millisecond, time.Until(last)-spread*time.Duration(n)/time.Duration(jobs))
		if n >= jobs-10 { // however slow the machine is, some are not due yet at the end
			after = max(spread, 8*time.Second, min(2*time.Since(began), 12*time.Second))
		}
		s.once(ctx, wish{after: after, loose: n%2 == 0})
	}
	if got, _ := s.callers.count(granted); got != jobs {
		return fmt.Errorf("%d jobs of %d: %s", got, jobs, s.callers)
	}
	if err := json.NewEncoder(os.Stdout).Encode(utterance{Ready: true}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// The process that reserved is killed, which would have woken River, and River's leader is, which
// would have promoted jobs, and nobody leads after that. Jobs that are due in the next 20 seconds
// need neither. A job of lower priority comes behind all that are due when it is inserted: when it
// starts, at River's poll if not before, those have been fetched, or another client is about to.
// When a second one starts, inserted after that, all have been.
func TestScheduledWorkWhenTheLeaderAndTheInserterAreKilled(t *testing.T) {
	t.Parallel()
	for name, crew := range map[string][]kind{"Configured": {careful, careful, careful},
		"Mixed": {careful, plain, plain}, "Plain": {plain, plain, plain}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, ok := long(t); !ok && name != "Mixed" {
				t.Skip("for a soak")
			}
			withoutLeaderAndInserter(t, crew)
		})
	}
}

func withoutLeaderAndInserter(t *testing.T, crew []kind) {
	t.Helper()
	jobs, spread := 150, 4*time.Second
	if _, ok := long(t); ok {
		jobs, spread = 1000, 20*time.Second
	}
	c := newChaos(t, 2*time.Minute, false)
	c.env = []string{rescueEnv + "=" + c.rescue.String(), fmt.Sprintf("%s=%d", countEnv, jobs),
		spreadEnv + "=" + spread.String()}
	c.hire(t, crew...)
	leader := c.leader(t)
	c.hire(t, inserting)
	for _, h := range c.crew {
		if h != leader && h.kind == inserting {
			c.bury(h)
		}
	}
	c.bury(leader)
	c.exec(t, `UPDATE river_leader SET expires_at = now() + interval '1 h'`) // nobody leads until then
	ahead := c.count(t, `SELECT count(*) FROM plan WHERE due > now()`)
	if n := c.count(t, `SELECT count(*) FROM river_job WHERE state = 'scheduled'`); n > 0 || ahead == 0 {
		t.Errorf("of %d jobs %d are not due, and %d are to be promoted by somebody", jobs, ahead, n)
	}

	c.await(t, "all are due", `SELECT count(*) FROM (SELECT FROM plan HAVING max(due) <= now()) x`)
	var sentinel int64
	for range 2 {
		sentinel = c.sentinel(t)
		c.await(t, "a plain job has started", `SELECT count(*) FROM start WHERE job = $1`, sentinel)
	}
	// Another client's fetch may still be under way, from before that.
	c.await(t, "all were fetched", `SELECT (NOT EXISTS (SELECT FROM river_job WHERE attempted_at IS NULL))::int`)
	behind := c.count(t, `SELECT count(*) FROM river_job j, start s
		WHERE s.job = $1 AND j.id <> s.job AND j.attempted_at > s.at AND j.attempt = 1`, sentinel)
	leads := c.count(t, `SELECT count(*) FROM river_leader WHERE leader_id <> $1`, leader.name)
	c.exec(t, `UPDATE river_leader SET expires_at = now() - interval '1 s'`)
	c.finish(t)
	c.dismiss(t)
	c.exec(t, `DELETE FROM start WHERE job IN (SELECT id FROM river_job WHERE args->>'id' = 'sentinel')`,
		`DELETE FROM river_job WHERE args->>'id' = 'sentinel'`)
	f := c.counts(t)
	fmt.Printf("faults: %s: %d jobs had not been due when leader and inserter were killed; %v\n", t.Name(), ahead, f)
	if behind > 0 || leads > 0 {
		t.Errorf("%d jobs started after one that had come behind them; %d leaders", behind, leads)
	}
	if f.jobs != jobs || f.early+f.lost+f.unworked+f.unplanned+len(f.unexplained) > 0 {
		t.Errorf("of %d jobs: %v; %q", jobs, f, f.unexplained)
	}
}

// sentinel inserts a plain job that comes behind all that are due.
func (c *chaos) sentinel(t *testing.T) int64 {
	t.Helper()
	var id int64
	if err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
		in, err := c.client.InsertTx(t.Context(), tx, dueArgs{ID: "sentinel"}, &river.InsertOpts{Priority: 4})
		if err == nil {
			id = in.Job.ID
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return id
}
