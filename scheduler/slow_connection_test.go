package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A pool whose connections take longer to open than a look waits for one is waited for: it costs no
// attempt, and no connection of its own.
func TestASlowConnectionCostsNoAttempt(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	cfg := f.pool.Config()
	cfg.MaxConnIdleTime, cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = time.Nanosecond, 4, 0, 0
	cfg.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
		select {
		case <-time.After(600 * time.Millisecond):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	slow, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	sched := scheduler.New(f.limiter, scheduler.Config{})
	limit := ratelimit.MustDefine("slow connection", ratelimit.TokenBucket{Rate: 1000, Period: never})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
	f.enqueue(t, upTo(3)...)
	j.client(t, nil, func(c *river.Config) { *c = *sched.Configure(slow, c) })
	for _, s := range j.await(t, 3) {
		if job := f.job(t, s.id); s.attempt != 1 || len(job.Errors) != 0 {
			t.Errorf("job %d started at attempt %d, after %+v", s.n, s.attempt, job.Errors)
		}
	}
}
