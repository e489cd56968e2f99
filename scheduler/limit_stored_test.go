package scheduler_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// sealed stores arguments in another form, as hooks that encrypt them do.
type sealed struct{ river.HookDefaults }

func (*sealed) InsertBegin(_ context.Context, p *rivertype.JobInsertParams) (err error) {
	p.EncodedArgs, err = json.Marshal(map[string][]byte{"sealed": p.EncodedArgs})
	return err
}

func (*sealed) WorkBegin(_ context.Context, job *rivertype.JobRow) error {
	var m map[string][]byte
	if err := json.Unmarshal(job.EncodedArgs, &m); err != nil {
		return err
	}
	job.EncodedArgs = m["sealed"]
	return nil
}

// What a limited worker takes for the backlog is what each job would take at its start: also if hooks
// store the arguments in another form, and if a retry asks for less.
func TestTheBacklogTakesWhatEachStartWouldTake(t *testing.T) {
	t.Parallel()
	for name, hooks := range map[string][]rivertype.Hook{"Plain": nil, "Sealed": {&sealed{}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			limit := ratelimit.MustDefine("stored", ratelimit.TokenBucket{Rate: 200, Period: time.Second})
			j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
				return scheduler.Limit(w, func(job *river.Job[sendArgs]) []ratelimit.Request {
					if job.Attempt > 1 {
						return []ratelimit.Request{limit.Global()}
					}
					return []ratelimit.Request{limit.Global().Count(float64(1 + job.Args.N))}
				})
			}
			only, err := river.NewClient(riverpgxv5.New(f.pool), &river.Config{Logger: quiet(), Hooks: hooks})
			if err != nil {
				t.Fatal(err)
			}
			const n = 20
			params := make([]river.InsertManyParams, n)
			for i := range params {
				params[i] = river.InsertManyParams{Args: sendArgs{49}}
			}
			if _, err := only.InsertMany(t.Context(), params); err != nil {
				t.Fatal(err)
			}
			j.client(t, sched, func(c *river.Config) {
				c.Hooks = hooks
				c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}}
			})
			taken := 0.0
			for _, s := range j.await(t, n) {
				for _, k := range s.takes {
					taken += k.Count
				}
			}
			if taken != n*50 {
				t.Errorf("%d jobs of 50 tokens have taken %v", n, taken)
			}
		})
	}
}
