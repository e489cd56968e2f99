package attempt

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type movedArgs struct{}

func (movedArgs) Kind() string { return "moved" }

// Two clients that have read the same backlog pay for each of its jobs once, whichever is faster. So
// do a client and a worker that has paid for a job in between.
func TestABacklogThatTwoClientsClearIsPaidForOnce(t *testing.T) {
	t.Parallel()
	pool, quiet, began := pgtest.Pool(t), slog.New(slog.DiscardHandler), time.Now()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{
		Citus: pgtest.Citus(), Clock: func() time.Time { return began }})
	if err != nil {
		t.Fatal(err)
	}
	// Ten jobs wait for 20 s, so that all of them stay available.
	rule := ratelimit.TokenBucket{Rate: 1, Period: 2 * time.Second, Capacity: ratelimit.Tokens(1)}
	limit := ratelimit.MustDefine("cleared twice", rule)
	take := []ratelimit.Request{limit.Global()}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return limiter.Consume(t.Context(), tx, take...)
	})
	if err != nil {
		t.Fatal(err)
	}
	var jobs []backlogged // as both clients have read them
	for range 10 {
		job, err := client.Insert(t.Context(), movedArgs{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, backlogged{job.Job, take})
	}
	// For the last one a worker has paid, whose tokens have come by now.
	if _, err := pool.Exec(t.Context(), `UPDATE river_job SET metadata = '{"weir": {}}'
WHERE id = $1`, jobs[9].job.ID); err != nil {
		t.Fatal(err)
	}
	store := riverjob.NewStore(limiter, ticket.Pacing{}, "")
	for range 2 {
		a := New(riverjob.NewClient(store, pool, quiet), nil, nil, nil)
		if _, err := a.place(t.Context(), slices.Clone(jobs), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	var value float64
	if err := pool.QueryRow(t.Context(),
		`SELECT value FROM weir_balance WHERE name = 'cleared twice'`).Scan(&value); err != nil {
		t.Fatal(err)
	}
	if value != -9 {
		t.Errorf("the balance is %v after nine jobs, want -9", value)
	}
}
