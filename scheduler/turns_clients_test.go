package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// One client grants turns at a time, and another one when the first has not been heard of.
func TestOneClientGrantsTurns(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 50, nil, limit.Global())
	began := s.now(t)
	s.step()
	s.keep(began)
	other := s.sched.Configure(s.pool, &river.Config{Logger: quiet()})
	if s.grant(other) {
		t.Fatal("another client holds the line, too")
	}
	s.exec(t, `UPDATE weir_line SET until = now()`)
	began = s.now(t)
	if !s.grant(other) {
		t.Fatal("another client does not hold the line when its holder is gone")
	}
	s.keep(began)
	if s.grant(s.cfg) {
		t.Fatal("the first client still holds the line")
	}
}

// keep has the client that holds the line since an instant keep it, however slow the machine is.
func (s *stepped) keep(since time.Time) {
	s.t.Helper()
	tag, err := s.pool.Exec(s.t.Context(), `UPDATE weir_line SET until = until + interval '1 hour'
		WHERE until >= $1::timestamptz + interval '3 s'`, since)
	if err != nil || tag.RowsAffected() != 1 {
		s.t.Fatalf("the line is not held for three seconds (%v)", err)
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
		held, err := scheduler.GrantTurns(t.Context(), other) // a grant that has failed says held, too
		return err == nil && held
	})
	if len(s.granted()) == 0 {
		t.Error("nothing is granted")
	}
	cancel()
	if err := <-hangs; err == nil {
		t.Error("the first client's transaction has committed")
	}
}
