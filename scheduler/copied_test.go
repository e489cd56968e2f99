package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// A worker may insert another job with the metadata of its own, to pass on an id of a trace, say.
// What its own job has taken is not the other one's.
func TestMetadataThatIsCopiedBringsNoTokens(t *testing.T) {
	t.Parallel()
	copies := func(f *fixture, in time.Duration) func(context.Context, *river.Job[sendArgs]) error {
		return func(ctx context.Context, job *river.Job[sendArgs]) error {
			if job.Args.N != 1 {
				return nil
			}
			opts := &river.InsertOpts{Metadata: job.Metadata, ScheduledAt: time.Now().Add(in)}
			_, err := f.client.Insert(ctx, sendArgs{2}, opts)
			return err
		}
	}
	t.Run("ToStart", func(t *testing.T) {
		t.Parallel()
		f, sched, j := exact(t)
		limit := ratelimit.MustDefine("copied to start",
			ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(1)})
		j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
		j.work = copies(f, 0)
		j.client(t, sched)
		opts := &river.InsertOpts{Metadata: []byte(`{"trace": "x"}`)}
		if _, err := f.client.Insert(t.Context(), sendArgs{1}, opts); err != nil {
			t.Fatal(err)
		}
		const second = `args->>'n' = '2' AND metadata->>'trace' = 'x' AND `
		waits := func() bool { return f.count(t, second+`scheduled_at > now() + interval '30 min'`) == 1 }
		eventually(t, "the second job waits, or is worked", func() bool {
			return waits() || f.count(t, second+`state = 'completed'`) == 1
		})
		if !waits() {
			t.Error("it does not wait for tokens of its own")
		}
	})
	t.Run("ToGiveBack", func(t *testing.T) {
		t.Parallel()
		f, sched, j := exact(t)
		limit := ratelimit.MustDefine("copied to give back",
			ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(10)})
		j.work = copies(f, time.Hour)
		first := f.insertBy(t, sched.Jobs(j.client(t, sched)), sendArgs{1}, limit.Global().Count(5))
		f.ended(t, first.Job.Job.ID)
		var second int64
		const sql = `SELECT id FROM river_job WHERE args->>'n' = '2'`
		if err := f.pool.QueryRow(t.Context(), sql).Scan(&second); err != nil {
			t.Fatal(err)
		}
		job, err := f.client.JobCancel(t.Context(), second)
		if err != nil || job.State != rivertype.JobStateCancelled {
			t.Fatal(job, err)
		}
		f.seen(t)
		if got := f.left(t, limit.Global()); got > 5.1 {
			t.Errorf("%v tokens are left, want 5: the job that has started has taken 5", got)
		}
	})
}
