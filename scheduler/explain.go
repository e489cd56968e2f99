package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// Waiting is a job that waits for its tokens, or for the end of a pause.
type Waiting struct {
	Job        *rivertype.JobRow
	Limit, Key string    // that it waits for; of several the one that has it wait longest
	Until      time.Time // when it starts, by the database's clock
	Paused     bool      // it starts then because of a pause
}

// String says why and until when.
func (w Waiting) String() string {
	by, of := "blocked", w.Limit
	if w.Key != "" {
		of += " of " + w.Key
	}
	if w.Paused {
		by = "held up by a pause"
	}
	return fmt.Sprintf("job %d (%s) is %s by %s until %s", w.Job.ID, w.Job.Kind, by, of, w.Until.Format("15:04:05.000 MST"))
}

// Explain tells what a job waits for that has not started, from what it carries: nothing is asked of the database. It does
// not know of a pause that began after the job was enqueued; [Jobs.Waiting] does.
func Explain(job *rivertype.JobRow) (Waiting, bool) {
	t, ok := waits(job)
	return t.explain(job), ok
}

// waits returns the ticket of a job that waits for its time.
func waits(job *rivertype.JobRow) (ticket, bool) {
	begun := *job
	switch job.State {
	case rivertype.JobStateAvailable, rivertype.JobStateScheduled:
		begun.Attempt++
	case rivertype.JobStateRunning:
	default:
		return ticket{}, false
	}
	t, ok := ticketOf(&begun)
	if job.State == rivertype.JobStateRunning && !job.ScheduledAt.Before(t.due().Add(-time.Second)) {
		return ticket{}, false // not held: at work, or about to be
	}
	return t, ok && t.Due != 0 && t.By < len(t.On)
}

func (t *ticket) explain(job *rivertype.JobRow) Waiting {
	if t.By >= len(t.On) {
		return Waiting{}
	}
	return Waiting{Job: job, Limit: t.On[t.By].limit, Key: t.On[t.By].key, Until: t.due()}
}

// Waiting lists what is reserved of one limit and key, the next to start first: at most n jobs, 10,000 at the most. It reads
// in the caller's transaction, and takes nothing. Jobs that another limit has wait longer are listed too.
func (j *Jobs) Waiting(ctx context.Context, tx pgx.Tx, request ratelimit.Request, n int) ([]Waiting, error) {
	found, delay, now, err := j.list(ctx, tx, request, n)
	if err != nil {
		return nil, err
	}
	var waiting []Waiting
	for _, w := range found {
		for _, p := range w.ticket.On {
			if later := w.Until.Add(delay - p.delay); p.limit == w.of.limit && p.key == w.of.key && later.After(w.Until) {
				w.Limit, w.Key, w.Until, w.Paused = p.limit, p.key, later, true
			}
		}
		if w.Until.After(now) {
			waiting = append(waiting, w.Waiting)
		}
	}
	slices.SortStableFunc(waiting, func(a, b Waiting) int { return a.Until.Compare(b.Until) })
	return waiting, nil
}

type lister interface {
	JobListTx(ctx context.Context, tx pgx.Tx, params *river.JobListParams) (*river.JobListResult, error)
}

type listed struct {
	Waiting
	ticket ticket
	of     place // whose jobs were asked for
}

// list finds the jobs that wait for a limit, with its delay and the clock.
func (j *Jobs) list(ctx context.Context, tx pgx.Tx, request ratelimit.Request, n int) ([]listed, time.Duration, time.Time, error) {
	client, ok := j.client.(lister)
	if !ok {
		return nil, 0, time.Time{}, errors.New("scheduler: the River client has no JobListTx")
	}
	res, err := j.scheduler.limiter.CheckRateLimit(ctx, tx, request.Count(0))
	if err != nil {
		return nil, 0, time.Time{}, err
	}
	of := place{limit: res.Outcomes[0].Limit, key: res.Outcomes[0].Key}
	fragment, err := json.Marshal(map[string]any{metadataKey: map[string]any{"on": []place{of}}})
	if err != nil {
		return nil, 0, time.Time{}, err
	}
	found, err := client.JobListTx(ctx, tx, river.NewJobListParams().Metadata(string(fragment)).First(n).
		States(rivertype.JobStateAvailable, rivertype.JobStateScheduled, rivertype.JobStateRunning).
		OrderBy(river.JobListOrderByScheduledAt, river.SortOrderAsc))
	if err != nil {
		return nil, 0, time.Time{}, err
	}
	var all []listed
	for _, job := range found.Jobs {
		if t, ok := waits(job); ok {
			all = append(all, listed{t.explain(job), t, of})
		}
	}
	return all, res.Outcomes[0].Delay, res.At, nil
}
