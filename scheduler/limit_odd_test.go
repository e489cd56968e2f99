package scheduler_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
)

// River takes any JSON as a job's metadata. A job that has to wait pays before it does, and not again
// when it starts.
func TestALimitedJobPaysOnceWhateverItsMetadataIs(t *testing.T) {
	t.Parallel()
	for name, metadata := range map[string]string{
		"Object": `{"own": 1}`, "Null": `null`, "Array": `[{"own": 1}]`, "Text": `"own"`, "Number": `1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			limit := ratelimit.MustDefine(t.Name(), ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(10)})
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
			if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), 5*time.Second, limit.Global()); err != nil {
				t.Fatal(err)
			}
			opts := &river.InsertOpts{Metadata: []byte(metadata)}
			if _, err := f.client.Insert(t.Context(), sendArgs{1}, opts); err != nil {
				t.Fatal(err)
			}
			j.client(t, sched)
			s := j.await(t, 1)[0]
			if s.attempt != 1 || len(s.takes) != 1 {
				t.Errorf("it started with attempt %d, and has taken %+v", s.attempt, s.takes)
			}
			f.completed(t, 1)
			f.want(t, limit.Global(), 9, 1)
		})
	}
}
