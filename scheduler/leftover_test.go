package scheduler_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/scheduler"
)

// leftover is the statement of the package's page that takes jobs out of the queues of versions
// before the first release.
func leftover(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "//	UPDATE")
	statement, _, ends := strings.Cut(rest, "\npackage ")
	if !found || !ends {
		t.Fatal("doc.go has no UPDATE")
	}
	return "UPDATE" + strings.ReplaceAll(statement, "//", "")
}

func TestWhatTheLastClientLeftCanBePutBackByHand(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	jobs := sched.Jobs(f.client)
	var left []*rivertype.JobRow
	for i, state := range []string{"available", "running", "retryable", "scheduled"} {
		job := f.reserve(t, jobs, i, 2*time.Second)
		left = append(left, job)
		if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = $2::text::river_job_state,
			queue = 'weir_default', scheduled_at = scheduled_at - interval '2.5 s',
			metadata = jsonb_build_object('weir', jsonb_build_object('more', '{}',
				'due', round(extract(epoch FROM scheduled_at) * 1e6)::bigint))
			WHERE id = $1`, job.ID, state); err != nil {
			t.Fatal(err)
		}
	}
	done := f.reserve(t, jobs, 9, 2*time.Second)
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET queue = 'weir_default',
		state = 'cancelled', finalized_at = now() WHERE id = $1`, done.ID); err != nil {
		t.Fatal(err)
	}

	if _, err := f.pool.Exec(t.Context(), leftover(t)); err != nil {
		t.Fatal(err)
	}
	for i, job := range left {
		got, want := f.job(t, job.ID), job.ScheduledAt
		if i > 0 {
			want = want.Add(-2500 * time.Millisecond)
		}
		if got.Queue != river.QueueDefault || !got.ScheduledAt.Equal(want) {
			t.Errorf("%s, in queue %s at %v, want %v", got.State, got.Queue, got.ScheduledAt, want)
		}
	}
	if got := f.job(t, done.ID); got.Queue != "weir_default" {
		t.Errorf("a cancelled job is in queue %s", got.Queue)
	}

	// Clients with and without the configuration start the job that waited, when it is due.
	j := newJournal(f)
	j.client(t, nil)
	j.client(t, sched)
	for _, s := range j.await(t, 1) {
		if s.id == left[0].ID && s.at.Before(left[0].ScheduledAt) {
			t.Errorf("started %v early", left[0].ScheduledAt.Sub(s.at))
		}
	}
	eventually(t, "it is completed", func() bool {
		return f.job(t, left[0].ID).State == rivertype.JobStateCompleted
	})
}
