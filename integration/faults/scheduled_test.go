package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/rig"
)

// any picks one of the crew.
func (s *shift) any() *hand {
	n := rand.N(len(s.crew))
	for _, h := range s.crew {
		if n--; n < 0 {
			return h
		}
	}
	return nil
}

// River's leader is killed. For 15 seconds nobody else leads; the test waits for some of them.
func TestScheduledWorkWhenTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newShift(t)
	s.run(t, fault{rounds: 1}, func() bool { return s.kills > 0 }, func(t *testing.T) {
		for range 2 {
			h := s.leader(t)
			s.busy(t, h)
			s.fire(h)
			s.callers.await(t, granted, 50+rand.N(50))
			s.age(t, ageLeader)
			s.hire(t, careful)
			s.leader(t)
		}
	})
}

func TestScheduledWorkWhenWorkersAreKilled(t *testing.T) {
	t.Parallel()
	s := newShift(t)
	s.run(t, fault{rounds: 1}, func() bool { return s.kills > 0 }, func(t *testing.T) {
		for range 5 {
			h := s.any()
			if rand.N(4) > 0 {
				s.busy(t, h)
			}
			s.fire(h)
			s.hire(t, careful)
			s.callers.await(t, granted, rand.N(30))
		}
	})
}

// restarts kills the server, and then shuts it down, in the middle of a job each.
func (s *shift) restarts(t *testing.T) {
	t.Helper()
	for _, end := range []func() error{s.fixture.server.Kill, func() error { return s.fixture.server.Shutdown("fast") }} {
		s.busy(t, s.any())
		if err := end(); err != nil {
			t.Fatal(err)
		}
		s.callers.await(t, away, 20+rand.N(50))
		if err := s.fixture.server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.callers.await(t, granted, 50)
	}
}

func TestScheduledWorkWhenTheServerIsKilledAndShutDown(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	ours(t)
	s := newShift(t)
	s.server = true
	x := fault{rounds: 1, hits: []class{away}, allowed: []class{unknown}}
	s.run(t, x, func() bool { return s.outages > 0 }, s.restarts)
}

// Leadership goes from one to the next, and nobody dies: then jobs are punctual, too.
func TestScheduledWorkWhenLeadershipChanges(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newShift(t)
	terms := map[time.Time]bool{}
	s.run(t, fault{rounds: 1}, func() bool { return len(terms) >= 5 }, func(t *testing.T) {
		for range 10 {
			s.leader(t)
			s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
				rows, err := conn.Query(ctx, `SELECT elected_at FROM river_leader`)
				if err != nil {
					return err
				}
				var at time.Time
				_, err = pgx.ForEachRow(rows, []any{&at}, func() error { terms[at] = true; return nil })
				return err
			})
			s.resign(t)
			s.callers.await(t, granted, 5+rand.N(30))
		}
	})
	if s.kills+s.outages > 0 {
		t.Errorf("%d starts were repeated, and nothing had happened", s.kills+s.outages)
	}
	t.Logf("%d terms; half of the jobs started at most %v late", len(terms), s.lateness(50))
}

// The same audit finds workers that break the promises.
func TestTheAuditFindsBrokenWorkers(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newShift(t)
	for _, c := range []struct {
		name   string
		crew   []kind
		inject func(t *testing.T)
		want   string // of one of the violations
	}{
		{"StartsWhatIsNotDue", []kind{careful, hasty, hasty}, func(t *testing.T) { s.callers.await(t, granted, 50) }, "before it was due"},
		{"CompletesOutsideOfTheTransaction", []kind{outside, outside, careful}, s.fireBetween, "was done 2 times"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, rounds := 0, 0
			var f *finding
			for ; found == 0 && rounds < 20; rounds++ { // a fault hits callers at random
				s.hire(t, c.crew...)
				stop := s.reserve(t)
				s.callers.await(t, granted, 50)
				c.inject(t)
				stop()
				f = s.examine(t)
				found = f.says(c.want)
				s.startOver(t)
			}
			if found == 0 {
				t.Errorf("in %d rounds no violation says %q; the last had %d: %q", rounds, c.want,
					len(f.violations), f.violations)
			} else {
				fmt.Printf("faults: the audit of scheduled work bites: %s: %d violations, %d of them %q, in round %d\n",
					c.name, len(f.violations), found, c.want, rounds)
			}
		})
	}
}

// fireBetween kills a worker after its work was committed, and before its job was completed.
func (s *shift) fireBetween(t *testing.T) {
	t.Helper()
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		for {
			var name string
			if err := conn.QueryRow(ctx,
				`SELECT coalesce((SELECT d.worker FROM done d JOIN river_job j ON j.id = d.job AND j.state = 'running'
				LIMIT 1), '')`).Scan(&name); err != nil {
				return err
			}
			if h := s.crew[name]; h != nil {
				s.fire(h)
				return nil
			}
			if _, err := conn.Exec(ctx, `SELECT pg_sleep(0.001)`); err != nil { // between two polls
				return err
			}
		}
	})
}
