package scheduler_test

import (
	"context"
	"testing"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// One client grants turns at a time, and another one when the first has not been heard of.
func TestOneClientGrantsTurns(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 50, nil, limit.Global())
	s.step()
	other := s.sched.Configure(s.pool, &river.Config{Logger: quiet()})
	if held, err := scheduler.GrantTurns(t.Context(), other); err != nil || held {
		t.Fatalf("another client holds the line, too (%v)", err)
	}
	s.exec(t, `UPDATE weir_line SET until = now()`)
	if held, err := scheduler.GrantTurns(t.Context(), other); err != nil || !held {
		t.Fatalf("another client does not hold the line (%v) when its holder is gone", err)
	}
	if held, err := scheduler.GrantTurns(t.Context(), s.cfg); err != nil || held {
		t.Fatalf("the first client still holds the line (%v)", err)
	}
}

// A client that hangs in the middle of a grant keeps the line for no longer than 5 s.
func TestAClientThatHangsLosesTheLine(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 50, nil, limit.Global())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hangs := scheduler.HoldLine(ctx, s.cfg, limit.Name(), "")
	if err := <-hangs; err != nil {
		t.Fatal(err)
	}
	other := s.sched.Configure(s.pool, &river.Config{Logger: quiet()})
	eventually(t, "another client holds the line", func() bool {
		held, _ := scheduler.GrantTurns(t.Context(), other)
		return held
	})
	if len(s.granted()) == 0 {
		t.Error("nothing is granted")
	}
	cancel()
	if err := <-hangs; err == nil {
		t.Error("the first client's transaction has committed")
	}
}
