package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

// Config configures a [Scheduler]. The zero Config uses the defaults.
type Config struct {
	// Jitter is the longest random delay that is added to RunAt, so that jobs that become due
	// together do not start together. It is never more than a tenth of the period of the limit that
	// set RunAt, because a longer delay would waste tokens; only after a pause, it may be. Jobs that
	// are granted at once are not delayed. Default: 250 ms for jobs that would start at the same
	// instant, which happens when a pause ends or, with Bunch, a window begins; otherwise none. A
	// negative value means none.
	Jitter time.Duration

	// Bunch starts all jobs reserved in a fixed window right at the start of the window, plus
	// jitter. Default: they are spread over the window in the order of their reservations, so that
	// an API does not get all of them at once.
	Bunch bool

	// Lines are the limits that tenants share fairly: see [Jobs.QueueTx]. Default: none.
	Lines []Line

	// Slots are what workers made by [AtOnce] take slots from. Set them in each program that works
	// such jobs. They must be in the database of Configure's pool. Default: none.
	Slots *slots.Slots
}

// Scheduler turns reservations into River jobs. It is safe for concurrent use.
type Scheduler struct {
	limiter *ratelimit.Limiter
	pacing  ticket.Pacing
	lines   fairline.Lines
	misused error // a mistake in Lines
	slots   hand.Slots
}

// New makes a Scheduler on top of a limiter. If there is a mistake in [Config.Lines],
// [Jobs.QueueTx] returns it as an error and [Scheduler.Configure] panics.
func New(limiter *ratelimit.Limiter, cfg Config) *Scheduler {
	pacing := ticket.Pacing{Jitter: cmp.Or(cfg.Jitter, 250*time.Millisecond),
		Always: cfg.Jitter != 0, Bunch: cfg.Bunch}
	lines, err := linesOf(cfg.Lines)
	s := &Scheduler{limiter, pacing, lines, err, nil}
	if cfg.Slots != nil {
		s.slots = cfg.Slots.Hand()
	}
	return s
}

// Client is the part of a River client that [Jobs] needs. *river.Client[pgx.Tx] implements it.
type Client interface {
	InsertTx(
		ctx context.Context, tx pgx.Tx, args river.JobArgs, opts *river.InsertOpts,
	) (*rivertype.JobInsertResult, error)
}

// Jobs inserts jobs through a River client. It is safe for concurrent use.
type Jobs struct {
	store     riverjob.Store
	scheduler *Scheduler
	client    Client
}

// Jobs returns a Jobs that inserts through the given River client. The client may be one that only
// inserts.
func (s *Scheduler) Jobs(client Client) *Jobs {
	schema := ""
	if c, ok := client.(interface{ Schema() string }); ok {
		schema = c.Schema()
	}
	return &Jobs{s.store(schema), s, client}
}

// store is what is read and written in one of River's schemas.
func (s *Scheduler) store(schema string) riverjob.Store {
	return riverjob.NewStore(s.limiter, s.pacing, schema)
}

// Inserted is what [Jobs.InsertTx] returns.
type Inserted struct {
	ratelimit.Result

	// Job is the inserted job, or nil if the Result is a denial. No other transaction sees it
	// before this one commits. If the transaction rolls back or runs again, no job with this id
	// will ever exist.
	Job *rivertype.JobInsertResult
}

// InsertTx takes what the requests ask for and inserts the job, in the caller's transaction.
//
//   - If the tokens exist, the job is inserted as opts say.
//   - If a request with OrReserve is granted ahead of time, the job is scheduled for
//     [ratelimit.Result.RunAt] plus jitter, or for the ScheduledAt of opts if that is later. Both
//     are compared with the database's clock.
//   - If it is denied, nothing is taken and no job is inserted. That is not an error: see
//     [ratelimit.Result.Err].
//   - If opts make the job unique and it exists already, nothing is taken.
//     Job.UniqueSkippedAsDuplicate is true, and Job.Job is the existing job. With ByPeriod, River
//     reckons by the time for which the job is scheduled, before v0.48 by that of the insert.
//
// opts may be nil. Everything in it is passed on to River. Later attempts of the job take again:
// see [JobArgsWithPays]. To settle what the job used, see [Jobs.SettleTx] and [ReservationOf].
//
// After an error nothing is kept. Either InsertTx has given back what the job had taken, or
// Postgres has failed a statement and the transaction can only roll back.
func (j *Jobs) InsertTx(
	ctx context.Context, tx pgx.Tx, args river.JobArgs, opts *river.InsertOpts,
	requests ...ratelimit.Request,
) (*Inserted, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	return j.scheduler.insertOne(ctx, j.scheduler.in(tx, single{j.client}), args, opts, requests)
}

// insertOne is [Jobs.InsertTx], for any kind of transaction.
func (s *Scheduler) insertOne(
	ctx context.Context, to target, args river.JobArgs, opts *river.InsertOpts,
	requests []ratelimit.Request,
) (*Inserted, error) {
	if args == nil {
		return nil, errNoArgs
	}
	res, err := to.verbs.RateLimit(ctx, requests...)
	if err != nil || !res.OK {
		return &Inserted{Result: res}, err
	}
	params := []InsertManyParams{{Args: args, InsertOpts: opts}}
	jobs, err := s.insert(ctx, to, params, []ratelimit.Result{res})
	if err != nil {
		return &Inserted{}, err
	}
	return jobs[0], nil
}

var errNoArgs = errors.New("scheduler: no job arguments")

// single inserts a single job as if it was of many.
type single struct{ Client }

func (s single) InsertManyTx(
	ctx context.Context, tx pgx.Tx, params []river.InsertManyParams,
) ([]*rivertype.JobInsertResult, error) {
	job, err := s.InsertTx(ctx, tx, params[0].Args, params[0].InsertOpts)
	return []*rivertype.JobInsertResult{job}, err
}

// target is a transaction in which jobs are inserted by a River client.
type target struct {
	verbs    ratelimit.Verbs
	insert   func(context.Context, []river.InsertManyParams) ([]*rivertype.JobInsertResult, error)
	giveBack func(context.Context, []ratelimit.Result) error
	fail     func(context.Context) // sees to it that the transaction cannot commit
}

// in is a target in a transaction of pgx.
func (s *Scheduler) in(tx pgx.Tx, client manyInserter) target {
	return target{s.limiter.In(tx),
		func(ctx context.Context, ps []river.InsertManyParams) ([]*rivertype.JobInsertResult, error) {
			jobs, err := client.InsertManyTx(ctx, tx, ps)
			if err == nil && len(jobs) != len(ps) {
				err = fmt.Errorf("scheduler: River has inserted %d jobs of %d", len(jobs), len(ps))
			}
			return jobs, err
		},
		func(ctx context.Context, results []ratelimit.Result) error {
			return s.limiter.GiveBackMany(ctx, tx, results)
		},
		func(ctx context.Context) { _, _ = tx.Exec(ctx, riverjob.FailSQL) }}
}

// insert inserts jobs whose tokens are taken.
func (s *Scheduler) insert(
	ctx context.Context, to target, params []InsertManyParams, each []ratelimit.Result,
) (inserted []*Inserted, err error) {
	defer func() {
		if inserted == nil {
			last, cancel := grace.After(ctx)
			defer cancel()
			if ctx.Err() != nil { // River may have inserted, and not yet notified
				to.fail(last)
			} else { // if Postgres failed, this does too, and rolls back with the rest
				_ = to.giveBack(last, each)
			}
		}
	}()
	ctx, in := riverjob.Inserting(ctx, each[0].At)
	inserts := make([]river.InsertManyParams, len(params))
	for i, p := range params {
		opts, err := s.schedule(p.Args, p.InsertOpts, &each[i])
		if err != nil && p.Requests != nil { // of several
			err = fmt.Errorf("params[%d]: %w", i, err)
		}
		if err != nil {
			return nil, err
		}
		inserts[i] = river.InsertManyParams{Args: p.Args, InsertOpts: opts}
	}
	jobs, err := to.insert(ctx, inserts)
	if err != nil {
		return nil, err
	}
	inserted = make([]*Inserted, len(jobs))
	var unused []ratelimit.Result
	for i, job := range jobs {
		inserted[i] = &Inserted{Result: each[i], Job: job}
		if job.UniqueSkippedAsDuplicate { // nothing is left to give back
			unused, inserted[i].Result = append(unused, each[i]),
				ratelimit.Result{OK: true, At: each[i].At}
		}
		in.Inserted(job.Job)
	}
	if len(unused) == 0 {
		return inserted, nil
	}
	ctx, cancel := grace.After(ctx)
	defer cancel()
	return inserted, to.giveBack(ctx, unused)
}

// check tells whether j was made with what it needs.
func (j *Jobs) check() error {
	if j.scheduler.limiter == nil || j.client == nil {
		return errNotMade("Jobs")
	}
	return nil
}

// clientOf returns the River client of j as a T, or an error that names the missing method.
func clientOf[T any](j *Jobs, method string) (client T, err error) {
	if err := j.check(); err != nil {
		return client, err
	}
	client, ok := j.client.(T)
	if !ok {
		err = errors.New("scheduler: the River client has no " + method)
	}
	return client, err
}

func errNotMade(by string) error {
	return errors.New("scheduler: made without a limiter or without a River client: see New and Scheduler." + by)
}

// schedule returns opts with a ticket and, for work that was granted ahead of time, with the time
// at which it may start.
func (s *Scheduler) schedule(
	args river.JobArgs, opts *river.InsertOpts, res *ratelimit.Result,
) (_ *river.InsertOpts, err error) {
	t := s.pacing.Ticket(res, 0, false)
	o, from := fill(&t, args, opts)
	if t.Due != 0 {
		t.From, t.Due = from, max(t.Due, from)
		o.ScheduledAt = t.DueAt()
	}
	o.Metadata, err = t.Into(o.Metadata)
	return &o, err
}

// fill notes in a ticket when the job pays. It returns a copy of opts, and from when on the caller
// wants the job to run: a ticket's From.
func fill(
	t *ticket.Ticket, args river.JobArgs, opts *river.InsertOpts,
) (o river.InsertOpts, from int64) {
	if opts != nil {
		o = *opts
	}
	if a, ok := args.(JobArgsWithPays); ok {
		t.Pays = ticket.Pays(a.Pays())
	}
	wanted := o.ScheduledAt
	if a, ok := args.(river.JobArgsWithInsertOpts); ok && wanted.IsZero() {
		wanted = a.InsertOpts().ScheduledAt
	}
	if !wanted.IsZero() {
		from = wanted.UnixMicro()
	}
	return o, from
}
