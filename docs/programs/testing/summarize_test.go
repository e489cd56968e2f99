// Package testing_test has the code of the guide to tests that works a River job.
package testing_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/weirtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// ChatTokens has less than a job takes, so that the job must wait.
var ChatTokens = ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{
	Rate: 1000, Period: time.Hour,
})

// Summarize is a job.
type Summarize struct{ Document int }

// Kind is the job's kind.
func (Summarize) Kind() string { return "summarize" }

// SummarizeWorker works it.
type SummarizeWorker struct {
	river.WorkerDefaults[Summarize]
}

// Work does nothing.
func (*SummarizeWorker) Work(context.Context, *river.Job[Summarize]) error { return nil }

func TestARiverJobIsWorked(t *testing.T) {
	t.Parallel()
	ctx, pool, args, org := t.Context(), pgtest.Pool(t), Summarize{1}, "acme"
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	sched := scheduler.New(limiter, scheduler.Config{})
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	cfg := sched.Configure(pool, &river.Config{})
	client, err := river.NewClient(riverpgxv5.New(pool), cfg)
	if err != nil {
		t.Fatal(err)
	}
	inserted, err := sched.Jobs(client).InsertTx(ctx, tx, args, nil, ChatTokens.For(org).Count(2000).OrReserve())
	if err != nil {
		t.Fatal(err)
	}
	testWorker := rivertest.NewWorker(t, riverpgxv5.New(pool), cfg, &SummarizeWorker{})
	result, err := testWorker.WorkJob(weirtest.WorkNow(ctx), t, tx, inserted.Job.Job)
	if err != nil {
		t.Fatal(err)
	}
	_, reserved := scheduler.ReservationOf(result.Job)
	if !reserved || result.EventKind != river.EventKindJobCompleted {
		t.Errorf("%+v", result)
	}
}

func TestALimitedWorkerIsCalledDirectly(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	worker := scheduler.Limit(&SummarizeWorker{}, func(*river.Job[Summarize]) []ratelimit.Request {
		return []ratelimit.Request{ChatTokens.For("acme")}
	})
	job := &river.Job[Summarize]{JobRow: &rivertype.JobRow{}, Args: Summarize{1}}
	err := worker.Work(weirtest.WorkNow(ctx), job)
	if err != nil {
		t.Error(err)
	}
}
