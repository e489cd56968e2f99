package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/slotline"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Waiting is a job that waits for its tokens, for its turn in a fair line, for a slot, or for a
// pause to end.
type Waiting struct {
	Job *rivertype.JobRow
	// that it waits for; if there are several, the one that it waits for longest
	Limit, Key string
	Until      time.Time // when it starts, by the database's clock; in a fair line: not before that
	Paused     bool      // it starts then because of a pause
	// it waits for a slot of Limit, of package slots, and nobody knows until when
	Slot bool

	// Tenant is whose job it is, if it waits in a fair [Line]. Then nobody knows when it starts,
	// and Until is the ScheduledAt that the caller wanted, or zero.
	Tenant string

	// Place is the job's place in [Jobs.InLine] or [Jobs.WaitingForSlot]: 1 has the next turn. It
	// is 0 where jobs that were not read may go before the job.
	Place int

	// Charged says in [Jobs.InLine] why the job has its place: how much its tenant will have had
	// before it, in tokens for a weight of 1, beyond what all who wait have had. The tenant that
	// has had the least goes next.
	Charged float64

	// PassedOver says in [Jobs.InLine] that Limit and Key are another limit of the job's, which has
	// too few tokens for it now. The line passes over its tenant until there are enough. In
	// [Jobs.WaitingForSlot] it says that the job's queue is paused.
	PassedOver bool
}

// String says why the job waits, and until when, if that is known.
func (w Waiting) String() string {
	by, of := "is blocked by", w.Limit
	if w.Key != "" {
		of += " of " + w.Key
	}
	until := fmt.Sprintf(" until %s", w.Until.Format("15:04:05.000 MST"))
	switch {
	case w.Slot:
		if by, until = "waits for a slot of", ""; w.PassedOver {
			until = ", and its queue is paused"
		}
	case w.Tenant != "":
		if by = "waits for its turn at"; w.PassedOver {
			by = "is passed over because of"
		}
		if until = ", for tenant " + w.Tenant; !w.Until.IsZero() {
			until += ", not before " + w.Until.Format("2006-01-02 15:04:05 MST")
		}
	case w.Paused:
		by = "is held up by a pause by"
	}
	return fmt.Sprintf("job %d (%s) %s %s%s", w.Job.ID, w.Job.Kind, by, of, until)
}

// Explain says what a job that has not started waits for. It reads the job's metadata and does not
// ask the database, so it does not know of a pause that began after the job was inserted, nor who
// goes first in a fair line, nor which jobs wait for slots. [Jobs.Waiting], [Jobs.InLine] and
// [Jobs.Explain] do.
func Explain(job *rivertype.JobRow) (Waiting, bool) {
	if s := ticket.InLine(job); s != nil {
		w := Waiting{Job: job, Limit: s.Limit, Key: s.Key, Tenant: s.Tenant}
		if s.From != 0 {
			w.Until = time.UnixMicro(s.From).UTC()
		}
		return w, true
	}
	if t, ok := ticket.Waiting(job); ok {
		return explained(&t, job), true
	}
	return Waiting{}, false
}

func explained(t *ticket.Ticket, job *rivertype.JobRow) Waiting {
	// What was there at once, and has to wait, was taken in a pause.
	takes, of := t.Taken.Takes, t.WaitsFor()
	paused := t.By >= len(takes) || !takes[t.By].Ahead()
	return Waiting{Job: job, Limit: of[0], Key: of[1], Until: t.DueAt(), Paused: paused}
}

// Waiting lists the jobs that have reserved tokens of one limit and key, in the order in which they
// will start: at most n jobs, and at most 9,900. It includes jobs that wait even longer for another
// limit. It reads in the caller's transaction and takes nothing.
func (j *Jobs) Waiting(
	ctx context.Context, tx pgx.Tx, request ratelimit.Request, n int,
) ([]Waiting, error) {
	res, err := j.scheduler.limiter.CheckRateLimit(ctx, tx, request.Count(0))
	if err != nil {
		return nil, err
	}
	return j.WaitingFor(ctx, tx, res.Outcomes[0].Limit, res.Outcomes[0].Key, n)
}

// WaitingFor is [Jobs.Waiting] for programs that have no definition of the limit, such as a
// dashboard. It takes the limit's name and the key, which is "" for [ratelimit.Limit.Global]. It
// writes nothing, and may be called in a read-only transaction.
func (j *Jobs) WaitingFor(
	ctx context.Context, tx pgx.Tx, limit, key string, n int,
) ([]Waiting, error) {
	client, err := clientOf[lister](j, "JobListTx")
	if err != nil {
		return nil, err
	}
	n = min(max(n, 0), mostListed-spare)
	of := ticket.Row{limit, key}
	// The part of metadata by which the jobs of a limit are found, and maybe some of others:
	// containment knows neither order nor number.
	fragment, err := json.Marshal(map[string]any{ticket.Key: map[string]any{"on": []ticket.Row{of}}})
	if err != nil {
		return nil, err
	}
	found, err := client.JobListTx(ctx, tx, river.NewJobListParams().Metadata(string(fragment)).
		States(rivertype.JobStateAvailable, rivertype.JobStateScheduled).First(n+spare).
		OrderBy(river.JobListOrderByScheduledAt, river.SortOrderAsc))
	if err != nil {
		return nil, err
	}
	var jobs []*rivertype.JobRow
	var waiting []*riverjob.Waiter
	for _, job := range found.Jobs {
		if t, ok := ticket.Waiting(job); ok && slices.Contains(t.Rows(), of) {
			jobs, waiting = append(jobs, job), append(waiting, &riverjob.Waiter{Ticket: t})
		}
	}
	now, err := j.store.Reckon(ctx, tx, waiting)
	if err != nil {
		return nil, err
	}
	var list []Waiting
	for i, w := range waiting {
		if t := &w.Ticket; w.Due.After(now) {
			putOff := w.Due.After(t.DueAt()) && w.Paused.After(now)
			t.Due = w.Due.UnixMicro()
			says := explained(t, jobs[i])
			says.Paused = says.Paused || putOff
			list = append(list, says)
		}
	}
	slices.SortStableFunc(list, func(a, b Waiting) int { return a.Until.Compare(b.Until) })
	return list[:min(n, len(list))], nil
}

const (
	mostListed = 10_000 // by River
	spare      = 100    // jobs that are found first, but are due
)

type lister interface {
	JobListTx(
		ctx context.Context, tx pgx.Tx, params *river.JobListParams,
	) (*river.JobListResult, error)
}

// withJobs reads the jobs of a list, by their ids. It leaves out those that have been deleted
// meanwhile.
func (j *Jobs) withJobs(ctx context.Context, tx pgx.Tx, list []Waiting) ([]Waiting, error) {
	client, err := clientOf[lister](j, "JobListTx")
	if err != nil || len(list) == 0 {
		return nil, err
	}
	jobs := map[int64]*rivertype.JobRow{}
	for _, w := range list {
		jobs[w.Job.ID] = nil
	}
	params := river.NewJobListParams().IDs(slices.Collect(maps.Keys(jobs))...).First(len(jobs))
	found, err := client.JobListTx(ctx, tx, params)
	if err != nil {
		return nil, err
	}
	for _, job := range found.Jobs {
		jobs[job.ID] = job
	}
	for i, w := range list {
		list[i].Job = jobs[w.Job.ID]
	}
	return slices.DeleteFunc(list, func(w Waiting) bool { return w.Job == nil }), nil
}

// InLine lists the jobs that wait in a fair [Line], in the order in which they will have their
// turns if nobody else comes, and there are tokens and workers for all of them. Jobs are left out
// before their ScheduledAt, and while they run or wait for a retry. It takes the limit's name and
// the key, which is "" for [ratelimit.Limit.Global].
//
// It lists at most n jobs, and at most 500. However many wait, it reads a few hundred, and at least
// four of each tenant. If more is true, others wait: behind the last that is listed, or behind the
// last of a tenant that has many. [Waiting.Charged], the priority of the job and
// [Waiting.PassedOver] say why a job goes before or after others.
//
// It takes nothing, writes nothing, and may be called in a read-only transaction. The role needs
// SELECT on weir_balance, weir_line, weir_line_tenant, weir_turn and river_job. A Scheduler that
// does not have the Line in its Config assumes a Patience of an hour, and no OverAll. PassedOver is
// only known of limits that this process has defined.
func (j *Jobs) InLine(
	ctx context.Context, tx pgx.Tx, limit, key string, n int,
) (next []Waiting, more bool, err error) {
	if err := j.check(); err != nil {
		return nil, false, err
	}
	found, more, err := j.scheduler.lines.List(ctx, j.store, tx, ticket.Row{limit, key}, n)
	if err != nil {
		return nil, false, err
	}
	for _, w := range found {
		next = append(next, Waiting{Job: &rivertype.JobRow{ID: w.ID}, Limit: w.For[0],
			Key: w.For[1], Tenant: w.Tenant, Place: w.Place, Charged: w.Charged,
			PassedOver: w.PassedOver})
	}
	next, err = j.withJobs(ctx, tx, next)
	return next, more, err
}

// WaitingForSlot lists the jobs that wait for a slot of a limit and key, for a worker made by
// [AtOnce], in the order in which they will be given slots: at most n jobs, and at most 10,000.
// Jobs of paused queues are passed over, and have no Place.
//
// It takes nothing, writes nothing, and may be called in a read-only transaction. The role needs
// SELECT on weir_turn, river_job and river_queue.
func (j *Jobs) WaitingForSlot(
	ctx context.Context, tx pgx.Tx, limit, key string, n int,
) ([]Waiting, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	n = min(max(n, 0), mostListed)
	var list []Waiting
	place, of := 0, hand.Place{Name: limit, Key: key}
	err := slotline.List(ctx, j.store, tx, of, n, func(id int64, paused bool) {
		w := Waiting{Job: &rivertype.JobRow{ID: id}, Limit: limit, Key: key, Slot: true,
			PassedOver: paused}
		if !paused {
			place++
			w.Place = place
		}
		list = append(list, w)
	})
	if err != nil {
		return nil, err
	}
	return j.withJobs(ctx, tx, list)
}

// Explain is [Explain], which asks the database as well whether the job waits for a slot, and with
// which place among the first 10,000: see [Jobs.WaitingForSlot].
func (j *Jobs) Explain(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow,
) (Waiting, bool, error) {
	if w, ok := Explain(job); ok {
		return w, true, nil
	}
	if err := j.check(); err != nil {
		return Waiting{}, false, err
	}
	of, found, err := slotline.PlaceOf(ctx, j.store, tx, job)
	if err != nil || !found {
		return Waiting{}, false, err
	}
	list, err := j.WaitingForSlot(ctx, tx, of.Name, of.Key, mostListed)
	if err != nil {
		return Waiting{}, false, err
	}
	if i := slices.IndexFunc(list, func(w Waiting) bool { return w.Job.ID == job.ID }); i >= 0 {
		return list[i], true, nil
	}
	return Waiting{Job: job, Limit: of.Name, Key: of.Key, Slot: true}, true, nil
}
