package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/dashboard"
	"github.com/weir-go/weir/dashboard/ahead"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/schema"
)

// answerArgs is a job that would ask a model, and here does nothing.
type answerArgs struct{}

func (answerArgs) Kind() string { return "answer" }

type answerWorker struct {
	river.WorkerDefaults[answerArgs]
}

func (*answerWorker) Work(context.Context, *river.Job[answerArgs]) error { return nil }

// playground is the program: limits, jobs, and the page.
type playground struct {
	pool    *pgxpool.Pool
	limiter *ratelimit.Limiter
	limits  *ratelimit.Coalesced
	jobs    *scheduler.Jobs
	river   *river.Client[pgx.Tx]
	page    *dashboard.Dashboard
}

func start(ctx context.Context, pool *pgxpool.Pool) (_ *playground, err error) {
	p := &playground{pool: pool}
	decisions := &dashboard.Decisions{}
	if p.limiter, err = ratelimit.New(ratelimit.Config{Observer: decisions}); err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &answerWorker{})
	sched := scheduler.New(p.limiter, scheduler.Config{Jitter: -1})
	p.river, err = river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{
		Logger:  slog.New(slog.NewTextHandler(io.Discard, nil)),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Schema:  pool.Config().ConnConfig.RuntimeParams["search_path"],
		Workers: workers,
	}))
	if err != nil {
		return nil, err
	}
	p.jobs = sched.Jobs(p.river)
	if p.page, err = dashboard.New(pool,
		dashboard.Config{Decisions: decisions, Ahead: ahead.Of(pool, p.jobs)}); err != nil {
		return nil, err
	}
	if err := p.river.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	p.limits = p.limiter.Coalesce(pool)
	for _, k := range kinds { // so that there is something to see
		key := "you"
		if _, err := p.fire(ctx, k, key, 1); err != nil {
			p.stop()
			return nil, err
		}
	}
	return p, nil
}

func (p *playground) stop() {
	p.limits.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = p.river.StopAndCancel(ctx) // what is left of the work goes with the schema
}

// fired is what became of calls.
type fired struct {
	Granted int `json:"granted"`
	Ahead   int `json:"ahead"`
	Denied  int `json:"denied"`
	Shadow  int `json:"shadow"` // denials of the limit in the shadow
	// seconds until the first that was denied would be granted, and
	RetryIn float64 `json:"retryIn"`
	RunsIn  float64 `json:"runsIn"` // until the last that was reserved runs
}

// fire makes n calls at once.
func (p *playground) fire(ctx context.Context, k kind, key string, n int) (f fired, err error) {
	if k.Ahead {
		err := p.limiter.InTx(ctx, p.pool, func(ctx context.Context, tx pgx.Tx) error {
			f = fired{} // it may run again
			for range n {
				in, err := p.jobs.InsertTx(ctx, tx, answerArgs{}, nil, k.requests(key)...)
				if err != nil {
					return err
				}
				f.count(in.Result)
				if !in.OK {
					f.Denied = n - f.Granted - f.Ahead // so are the others
					break
				}
			}
			return nil
		})
		return f, err
	}
	type answer struct {
		res ratelimit.Result
		err error
	}
	answers := make(chan answer, n)
	for range n {
		go func() {
			res, err := p.limits.RateLimit(ctx, k.requests(key)...)
			answers <- answer{res, err}
		}()
	}
	for range n {
		a := <-answers
		err = errors.Join(err, a.err)
		f.count(a.res)
	}
	return f, err
}

func (f *fired) count(res ratelimit.Result) {
	switch {
	case res.OK && !res.RunAt.IsZero():
		f.Ahead++
		f.RunsIn = max(f.RunsIn, res.RunAt.Sub(res.At).Seconds())
	case res.OK:
		f.Granted++
	case res.Decided():
		f.Denied++
		if in := res.RetryAfter().Seconds(); f.RetryIn == 0 || in < f.RetryIn {
			f.RetryIn = in
		}
	}
	for _, o := range res.Outcomes {
		if o.Shadow && !o.OK {
			f.Shadow++
		}
	}
}

// do is one of the other verbs.
func (p *playground) do(ctx context.Context, verb string, k kind, key string) error {
	return p.limiter.InTx(ctx, p.pool, func(ctx context.Context, tx pgx.Tx) error {
		switch rs := k.requests(key); verb {
		case "reset":
			return p.limiter.ResetRateLimit(ctx, tx, rs...)
		case "pause":
			return p.limiter.Pause(ctx, tx, 10*time.Second, rs...)
		default:
			return p.limiter.Resume(ctx, tx, rs...)
		}
	})
}

// open makes a schema of the demo's own, so that it may run on a database in use: with Weir's
// tables and River's.
func open(ctx context.Context, url string) (_ *pgxpool.Pool, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	name := "weir_demo_play_" + strings.ToLower(rand.Text()[:8])
	cfg.MaxConns = 20
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, drop(pool))
		}
	}()
	if err := schema.Migrate(ctx, pool, schema.In(name)); err != nil {
		return nil, err
	}
	return pool, tables(ctx, pool, name)
}

// tables makes River's.
func tables(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	migrator, err := rivermigrate.New(riverpgxv5.New(pool),
		&rivermigrate.Config{Logger: quiet, Schema: schema})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func drop(pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := pool.Config().ConnConfig.RuntimeParams["search_path"]
	_, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
	pool.Close()
	return err
}
