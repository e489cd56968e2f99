package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A pause holds even if the client is stopped, and the attempt cancelled, while the upstream's answer
// is on its way.
func TestAPauseHoldsWhenTheClientIsStopped(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("pausedLate", ratelimit.TokenBucket{Rate: 10, Period: never})
	j := newJournal(f)
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		<-ctx.Done()
		return &scheduler.PauseError{For: time.Hour, Requests: []ratelimit.Request{limit.Global()}}
	}
	f.enqueue(t, 1)
	client := j.client(t, scheduler.New(f.limiter, scheduler.Config{}))
	id := j.await(t, 1)[0].id
	stop(t, client)
	if job := f.job(t, id); job.State != rivertype.JobStateScheduled || job.Attempt != 0 || len(job.Errors) > 0 {
		t.Errorf("%s, attempt %d, errors %v", job.State, job.Attempt, job.Errors)
	}
	f.want(t, limit.Global(), 10, -1)
	s, err := f.limiter.Autocommit(f.pool).Value(t.Context(), limit.Global())
	if err != nil || s.PausedUntil.IsZero() {
		t.Errorf("the limit is not paused: %v", err)
	}
}
