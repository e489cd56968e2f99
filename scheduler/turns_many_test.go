package scheduler_test

import (
	"testing"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// A grant reads only so many jobs of each priority, and keeps their order all the same.
func TestManyJobsOfATenantAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	limit := shared(t, 1000, 1000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	a := scheduler.Tenant{Key: "a"}
	s.wait(a, 100, &river.InsertOpts{Priority: 2}, limit.Global())
	s.wait(a, 150, &river.InsertOpts{Priority: 1}, limit.Global())
	for range 10 {
		s.round()
	}
	all := s.granted()
	if len(all) != 250 {
		t.Fatalf("%d jobs are granted, want 250", len(all))
	}
	for i, g := range all {
		if (g.priority == 1) != (i < 150) {
			t.Fatalf("job %d of 250 that are granted has priority %d, want the 150 of priority 1 first",
				i+1, g.priority)
		}
	}
}
