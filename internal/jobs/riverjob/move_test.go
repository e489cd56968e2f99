package riverjob_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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

// withRiver returns a pool on Weir's and River's tables, and a client that only inserts.
func withRiver(t *testing.T) (*pgxpool.Pool, *river.Client[pgx.Tx], *ratelimit.Limiter) {
	t.Helper()
	pool, logger := pgtest.Pool(t), slog.New(slog.NewTextHandler(io.Discard, nil))
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	return pool, client, limiter
}

// A move changes a job that still waits where it was read, and no other: somebody may have moved,
// cancelled or completed it since, and a client may work it. A job that would stay as it is has no
// new row version.
func TestAMoveLeavesAloneWhatHasChangedSince(t *testing.T) {
	t.Parallel()
	pool, client, limiter := withRiver(t)
	now := time.Now().UTC().Truncate(time.Microsecond)
	was, due := now.Add(time.Hour), now.Add(time.Minute)
	changes := []struct {
		name, set string
		moves     bool
	}{
		{"unchanged", `attempt = 0`, true},
		{"available", `state = 'available'`, true},
		{"moved by hand", `scheduled_at = scheduled_at + interval '1 hour'`, false},
		{"fetched", `state = 'running', attempt = 1, attempted_at = now()`, false},
		{"completed", `state = 'completed', finalized_at = now()`, false},
		{"cancelled", `state = 'cancelled', finalized_at = now()`, false},
		{"failed", `state = 'retryable', attempt = 1`, false},
		{"where it should be", `attempt = 0`, false},
		{"promoted by River", `state = 'available'`, false}, // as this move would have done
	}
	jobs, before := make([]*riverjob.Waiter, len(changes)), make([]string, len(changes))
	row := func(id int64) (text string, at time.Time) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT xmin::text || j::text, scheduled_at FROM river_job j WHERE id = $1`,
			id).Scan(&text, &at); err != nil {
			t.Fatal(err)
		}
		return text, at
	}
	for i, c := range changes {
		at := was
		if c.name == "promoted by River" {
			at = now.Add(10 * time.Second)
		}
		job, err := client.Insert(t.Context(), movedArgs{}, &river.InsertOpts{ScheduledAt: at})
		if err != nil {
			t.Fatal(err)
		}
		jobs[i] = &riverjob.Waiter{ID: job.Job.ID, At: job.Job.ScheduledAt, Due: due, State: "scheduled"}
		if c.name == "where it should be" || c.name == "promoted by River" {
			jobs[i].Due = jobs[i].At
		}
		if _, err := pool.Exec(t.Context(), `UPDATE river_job SET `+c.set+` WHERE id = $1`, job.Job.ID); err != nil {
			t.Fatal(err)
		}
		before[i], _ = row(job.Job.ID)
	}
	ids := make([]int64, len(jobs))
	for i, w := range jobs {
		ids[i] = w.ID
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := riverjob.NewStore(limiter, ticket.Pacing{}, "").Move(ctx, pool, jobs, now); err != nil {
		t.Fatal(err)
	}
	for i, c := range changes {
		switch after, at := row(ids[i]); {
		case c.moves && !at.Equal(due):
			t.Errorf("%s: it is due at %v, want %v", c.name, at, due)
		case !c.moves && after != before[i]:
			t.Errorf("%s: it was\n%s and is\n%s", c.name, before[i], after)
		}
	}
}

// sent counts the jobs in each statement that moves some.
type sent struct {
	riverjob.Querier
	jobs []int
}

func (s *sent) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.jobs = append(s.jobs, strings.Count(fmt.Sprint(args...), `"id":`))
	return s.Querier.Query(ctx, sql, args...)
}

// A move waits for no row that somebody else has locked: that job stays where it is, and the others
// are moved, a thousand in a statement. If they are due soon, 600 are available ahead of time.
func TestAMoveWaitsForNobody(t *testing.T) {
	t.Parallel()
	pool, client, limiter := withRiver(t)
	now := time.Now().UTC().Truncate(time.Microsecond)
	was, due := now.Add(time.Hour), now.Add(20*time.Second)
	many := make([]river.InsertManyParams, 1001)
	for i := range many {
		many[i] = river.InsertManyParams{Args: movedArgs{}, InsertOpts: &river.InsertOpts{ScheduledAt: was}}
	}
	inserted, err := client.InsertMany(t.Context(), many)
	if err != nil {
		t.Fatal(err)
	}
	var jobs []*riverjob.Waiter
	for _, in := range inserted {
		jobs = append(jobs, &riverjob.Waiter{ID: in.Job.ID, At: in.Job.ScheduledAt, Due: due, State: "scheduled"})
	}
	locked, at := jobs[0].ID, jobs[0].At
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM river_job WHERE id = $1 FOR UPDATE`, locked); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET lock_timeout = '2s'`); err != nil { // who waits fails
		t.Fatal(err)
	}
	s := &sent{Querier: conn}
	if err := riverjob.NewStore(limiter, ticket.Pacing{}, "").Move(t.Context(), s, jobs, now); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.jobs, []int{1000, 1}) {
		t.Errorf("statements moved %v jobs, want 1000 and 1", s.jobs)
	}
	var moved, available, left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE scheduled_at = $1),
		count(*) FILTER (WHERE state = 'available'),
		count(*) FILTER (WHERE scheduled_at = $2 AND id = $3) FROM river_job`, due, at, locked).
		Scan(&moved, &available, &left); err != nil {
		t.Fatal(err)
	}
	if available != riverjob.MostAvailable-1 { // the locked one would be the first of them
		t.Errorf("%d jobs are available ahead of time", available)
	}
	if moved != len(many)-1 || left != 1 {
		t.Errorf("%d jobs were moved, and the locked one is where it was: %v", moved, left == 1)
	}
}

// River takes any JSON as a job's metadata. One whose metadata is no object does not keep the others
// of a statement from being moved.
func TestAMoveWritesATicketWhateverTheMetadataIs(t *testing.T) {
	t.Parallel()
	pool, client, limiter := withRiver(t)
	due := time.Now().UTC().Add(time.Minute).Truncate(time.Microsecond)
	var jobs []*riverjob.Waiter
	var ids []int64
	for _, metadata := range []string{`{"own": 1}`, `null`, `[{"own": 1}]`, `"own"`, `1`} {
		job, err := client.Insert(t.Context(), movedArgs{}, &river.InsertOpts{Metadata: []byte(metadata)})
		if err != nil {
			t.Fatal(err)
		}
		w := &riverjob.Waiter{ID: job.Job.ID, At: job.Job.ScheduledAt, Due: due, Differs: true}
		w.Ticket.Due = due.UnixMicro()
		jobs, ids = append(jobs, w), append(ids, w.ID)
	}
	if err := riverjob.NewStore(limiter, ticket.Pacing{}, "").Move(t.Context(), pool, jobs, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		job, err := client.JobGet(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		k, found := ticket.Of(job)
		if !found || !k.DueAt().Equal(due) || !job.ScheduledAt.Equal(due) {
			t.Errorf("%s: the ticket says %v, and the row %v; want %v", job.Metadata, k.DueAt(), job.ScheduledAt, due)
		}
	}
}
