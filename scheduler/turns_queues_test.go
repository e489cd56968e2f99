package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// While nobody works a queue, as it is paused for example, a tenant's jobs of other queues have their
// turns. Its own jobs go on in their order when somebody does.
func TestAQueueThatNobodyWorksHoldsUpNoOtherQueueOfItsTenant(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	const n = 20
	s.wait(scheduler.Tenant{Key: "t"}, n, &river.InsertOpts{Queue: "stopped"}, limit.Global())
	s.wait(scheduler.Tenant{Key: "t"}, n, nil, limit.Global())
	var stopped, others []int
	work := func(all bool) {
		s.round()
		for _, g := range s.granted() {
			switch {
			case g.n > n:
				others = append(others, g.n)
				s.end(g.id)
			case all:
				stopped = append(stopped, g.n)
				s.end(g.id)
			}
		}
	}
	for range 10 * n {
		work(false)
	}
	if got := s.granted(); len(got) != 2 {
		t.Errorf("%v of the queue that nobody works are granted, want two", numbers(got))
	}
	for range 10 * n {
		if len(stopped) < n {
			work(true)
		}
	}
	for i := range n {
		if len(stopped) != n || len(others) != n || stopped[i] != i+1 || others[i] != n+i+1 {
			t.Fatalf("granted in the order %v and, of the other queue, %v", stopped, others)
		}
	}
}

// Granted jobs that were put off, by another limit for example, wait for no worker.
func TestGrantedWorkThatIsPutOffHoldsUpNobody(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 50, nil, limit.Global())
	for range 3 {
		for range 5 {
			s.round()
		}
		all := s.granted()
		if len(all) == 0 {
			t.Fatal("nothing is granted, as jobs that are put off are taken to wait for a worker")
		}
		for _, g := range all {
			s.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'scheduled', scheduled_at = '2200-01-01' WHERE id = %d`, g.id))
		}
	}
}

// Reservations go ahead of the line, and it goes on when they are within reach.
func TestReservationsGoAheadOfTheLine(t *testing.T) {
	t.Parallel()
	limit := store(t, 10)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	in := s.insert(t, sendArgs{1}, nil, limit.Global().Count(12).OrReserve())
	if in.RunAt.IsZero() {
		t.Fatal("not reserved ahead")
	}
	s.wait(scheduler.Tenant{Key: "a"}, 1, nil, limit.Global())
	s.round()
	if n := s.inLine(t); n != 1 {
		t.Fatalf("%d jobs in line, want 1: the limit owes tokens", n)
	}
	if err := s.limiter.Autocommit(s.pool).ResetRateLimit(t.Context(), limit.Global()); err != nil {
		t.Fatal(err)
	}
	s.round()
	if n := s.inLine(t); n != 0 {
		t.Errorf("%d jobs in line, want none: there are tokens", n)
	}
}
