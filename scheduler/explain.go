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
	if job.State != rivertype.JobStateAvailable && job.State != rivertype.JobStateScheduled {
		return ticket{}, false
	}
	t, ok, _ := ticketOf(job)
	ok = ok && t.known() && t.Attempt == job.Attempt && t.Due != 0 && t.By < len(t.rows())
	t.Due = job.ScheduledAt.UnixMicro() // it may have been moved
	return t, ok
}

func (t *ticket) explain(job *rivertype.JobRow) Waiting {
	rows, takes := t.rows(), t.takes()
	if t.By >= len(rows) {
		return Waiting{}
	}
	// What was there at once, and has to wait, was taken in a pause.
	paused := t.By >= len(takes) || !takes[t.By].Ahead()
	return Waiting{Job: job, Limit: rows[t.By].limit, Key: rows[t.By].key, Until: t.due(), Paused: paused}
}

// Waiting lists what is reserved of one limit and key, the next to start first: at most n jobs, 9,900 at the most. It reads
// in the caller's transaction, and takes nothing. Jobs that another limit has wait longer are listed too.
func (j *Jobs) Waiting(ctx context.Context, tx pgx.Tx, request ratelimit.Request, n int) ([]Waiting, error) {
	of, err := j.row(ctx, tx, request)
	if err != nil {
		return nil, err
	}
	return j.WaitingFor(ctx, tx, of.limit, of.key, n)
}

// WaitingFor is [Jobs.Waiting] for programs that only look, and have no definition of the limit: by its name and a key, "" for
// [ratelimit.Limit.Global]. It writes nothing, and may be called in a read-only transaction.
func (j *Jobs) WaitingFor(ctx context.Context, tx pgx.Tx, limit, key string, n int) ([]Waiting, error) {
	client, ok := j.client.(lister)
	if !ok {
		return nil, errors.New("scheduler: the River client has no JobListTx")
	}
	n = min(max(n, 0), mostListed-spare)
	of := row{limit, key}
	fragment, err := of.fragment()
	if err != nil {
		return nil, err
	}
	found, err := client.JobListTx(ctx, tx, river.NewJobListParams().Metadata(fragment).First(n+spare).
		States(rivertype.JobStateAvailable, rivertype.JobStateScheduled).
		OrderBy(river.JobListOrderByScheduledAt, river.SortOrderAsc))
	if err != nil {
		return nil, err
	}
	var jobs []*rivertype.JobRow
	var waiting []*ticket
	for _, job := range found.Jobs {
		if t, ok := waits(job); ok && slices.Contains(t.rows(), of) {
			jobs, waiting = append(jobs, job), append(waiting, &t)
		}
	}
	states, now, err := db{tx, j.tables}.states(ctx, waiting)
	if err != nil {
		return nil, err
	}
	var list []Waiting
	for i, t := range waiting {
		due, by := t.reckon(states, now, j.scheduler.bunch)
		if !due.After(now) {
			continue
		}
		r := t.rows()[by]
		later := due.After(t.due())
		t.Due, t.By = due.UnixMicro(), by
		w := t.explain(jobs[i])
		w.Paused = w.Paused || later && states[r].PausedUntil.After(now)
		list = append(list, w)
	}
	slices.SortStableFunc(list, func(a, b Waiting) int { return a.Until.Compare(b.Until) })
	return list[:min(n, len(list))], nil
}

const (
	mostListed = 10_000 // by River
	spare      = 100    // jobs that are found first, but are due
)

type lister interface {
	JobListTx(ctx context.Context, tx pgx.Tx, params *river.JobListParams) (*river.JobListResult, error)
}

// row is that of a request.
func (j *Jobs) row(ctx context.Context, tx pgx.Tx, r ratelimit.Request) (row, error) {
	res, err := j.scheduler.limiter.CheckRateLimit(ctx, tx, r.Count(0))
	if err != nil {
		return row{}, err
	}
	return row{res.Outcomes[0].Limit, res.Outcomes[0].Key}, nil
}

// fragment is the part of metadata by which the jobs of a limit are found, and maybe some of others: containment knows neither
// order nor number.
func (r row) fragment() (string, error) {
	b, err := json.Marshal(map[string]any{metadataKey: map[string]any{"on": [][]string{{r.limit, r.key}}}})
	return string(b), err
}
