package faults

import (
	"syscall"
	"testing"
	"time"
)

// A worker is frozen while it holds a job, for so long that a sweep gives the job to another; it comes back while the other
// works. The job was taken from it: it must not start it.
func TestScheduledWorkWhenAWorkerIsFrozen(t *testing.T) {
	t.Parallel()
	s := newShift(t)
	s.hire(t, slow)
	frozen := s.any()
	s.once(t.Context(), 2*time.Second)
	s.await(t, "the job is held", `SELECT count(*) FROM river_job WHERE queue = 'weir_default' AND state = 'running'`)
	if err := frozen.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.await(t, "it is due", `SELECT count(*) FROM plan WHERE due < now()`)
	s.exec(t, `UPDATE river_job SET attempted_at = attempted_at - interval '1 min'`) // as if a sweep's 30 s were over
	s.hire(t, slow)
	s.await(t, "another has started it", `SELECT count(*) FROM start`)
	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, v := range s.examine(t).violations {
		t.Error(v)
	}
}

// await waits until a count is not zero.
func (s *shift) await(t *testing.T, what, sql string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); s.count(t, sql) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute: " + what)
		}
	}
}
