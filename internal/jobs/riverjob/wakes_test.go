package riverjob_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
)

// texts are the statements of a pool that notify River.
type texts struct {
	mu  sync.Mutex
	all []string
}

func (s *texts) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "river_insert") {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, q.SQL)
	}
	return ctx
}

func (s *texts) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// One statement notifies River of all queues in which jobs are due, and no disk is waited for.
func TestOneStatementWakesSeveralQueues(t *testing.T) {
	t.Parallel()
	pool, client, limiter := withRiver(t)
	var ids []int64
	queues := []string{"one", "other"}
	for _, queue := range queues {
		job, err := client.Insert(t.Context(), movedArgs{}, &river.InsertOpts{Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.Job.ID)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	own := conn.Hijack()
	defer func() { _ = own.Close(context.WithoutCancel(ctx)) }()
	topic := pool.Config().ConnConfig.RuntimeParams["search_path"] + ".river_insert"
	if _, err := own.Exec(ctx, `LISTEN `+pgx.Identifier{topic}.Sanitize()); err != nil {
		t.Fatal(err)
	}

	cfg, statements := pool.Config(), &texts{}
	cfg.ConnConfig.Tracer = statements
	traced, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer traced.Close()
	c := riverjob.NewClient(riverjob.NewStore(limiter, ticket.Pacing{}, ""), traced, slog.New(slog.DiscardHandler))
	heard, tries := map[string]bool{}, 0
	for ; len(heard) < len(queues) && tries < 3; tries++ { // a look ends after two seconds
		clear(heard)
		due := time.Now().Add(time.Second) // the same for both, and later than both are added
		for _, id := range ids {
			c.Waker.Add(id, due, false)
		}
		try, end := context.WithTimeout(ctx, 10*time.Second)
		for len(heard) < len(queues) {
			n, err := own.WaitForNotification(try)
			if err != nil && try.Err() != nil && ctx.Err() == nil {
				break
			}
			if err != nil {
				t.Fatal(err, ": River was notified of ", heard)
			}
			var to struct{ Queue string }
			if err := json.Unmarshal([]byte(n.Payload), &to); err != nil {
				t.Fatal(n.Payload, err)
			}
			heard[to.Queue] = true
		}
		end()
	}
	if got := slices.Sorted(maps.Keys(heard)); !slices.Equal(got, queues) {
		t.Errorf("River was notified of %v, want %v", got, queues)
	}
	statements.mu.Lock()
	defer statements.mu.Unlock()
	if n := len(statements.all); n == 0 || n > tries {
		t.Errorf("%d statements have notified River in %d tries, want one in each: %v", n, tries,
			statements.all)
	}
	for _, sql := range statements.all {
		if !strings.Contains(sql, `set_config('synchronous_commit', 'off', true)`) {
			t.Errorf("its commit waits for the disk: %s", sql)
		}
	}
}
