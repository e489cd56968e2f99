package riverjob_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// partly fails statements that name a key whose worker is down, as a coordinator of Citus does.
type partly struct {
	riverjob.Querier
	down  string
	nodes bool // it tells on which nodes keys are
}

func (p partly) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if p.nodes && strings.Contains(sql, "pg_dist_placement") {
		const sql = `SELECT k, CASE WHEN k = 'down' THEN 1 ELSE 2 END FROM unnest($1::text[]) AS k`
		return p.Querier.Query(ctx, sql, args[0])
	}
	for _, a := range args {
		if keys, ok := a.([]string); ok && slices.Contains(keys, p.down) {
			err := &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "08006",
				Message: "connection to the remote node failed"}
			return noRows{err: err}, err
		}
	}
	return p.Querier.Query(ctx, sql, args...)
}

type noRows struct {
	pgx.Rows
	err error
}

func (noRows) Close()       {}
func (noRows) Next() bool   { return false }
func (n noRows) Err() error { return n.err }

// While a worker is down, the jobs of its keys keep their times. Other jobs get new ones.
func TestJobsOfAWorkerThatIsDownKeepTheirTimes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.MustDefine("partly down",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	at := time.Now().Add(time.Hour)
	var jobs []*riverjob.Waiter
	var due []time.Time
	for _, key := range []string{"down", "up", "down", "up too"} {
		res, err := limiter.Autocommit(pool).RateLimit(t.Context(), limit.For(key).Count(100).OrReserve())
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, &riverjob.Waiter{At: at, Ticket: ticket.Pacing{}.Ticket(&res, 0, false)})
		due = append(due, res.RunAt)
	}
	c := riverjob.NewClient(riverjob.NewStore(limiter, ticket.Pacing{}, ""), pool,
		slog.New(slog.DiscardHandler))
	for _, down := range []string{"down", "none"} {
		now, err := c.ReckonEach(t.Context(), partly{pool, down, true}, jobs)
		if err != nil || now.IsZero() {
			t.Fatal(now, err)
		}
		for i, w := range jobs {
			want, unread := due[i], i%2 == 0 && down == "down"
			if unread {
				want = at
			}
			if d := w.Due.Sub(want).Abs(); d > time.Millisecond || unread != (w.Unread != nil) {
				t.Errorf("%s is down: job %d is due at %v (%v), want %v", down, i, w.Due, w.Unread, want)
			}
		}
	}
	for _, nodes := range []bool{true, false} { // the error says why none could be read
		_, err := c.ReckonEach(t.Context(), partly{pool, "down", nodes}, jobs[:1])
		if !riverjob.IsBlocked(err) || !strings.Contains(err.Error(), "the remote node failed") {
			t.Errorf("it tells nodes: %v; none could be read: %v", nodes, err)
		}
	}
}
