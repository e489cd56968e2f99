package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// recording counts the statements of a pool by what they are for, and its round trips.
type recording struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *recording) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData,
) context.Context {
	r.count("trips")
	r.count(purpose(q.SQL, q.Args))
	return ctx
}

func (r *recording) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *recording) TraceBatchStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData,
) context.Context {
	r.count("trips")
	return ctx
}

func (r *recording) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	r.count(purpose(q.SQL, q.Args))
}

func (r *recording) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func purpose(sql string, args []any) string {
	switch {
	case strings.Contains(sql, `'weir scheduler'`):
		return fmt.Sprintf("turn %v", args[3])
	case strings.Contains(sql, "EXCEPT SELECT job"):
		return "lost"
	case strings.Contains(sql, "river_queue q"):
		return "waiting"
	case strings.Contains(sql, "OPERATOR(pg_catalog.=) 'cancelled' AND (finalized_at"):
		return "cancelled"
	case strings.Contains(sql, "weir_line"):
		return "lines"
	case strings.Contains(sql, "RECURSIVE place"):
		return "slots"
	}
	return sql
}

func (r *recording) count(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n[what]++
}

func (r *recording) of(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[what]
}

// While nothing waits, a client sends no more statements than doc.go says, in as few round trips,
// however many queues it has. It may send each one once in a while: a slow machine sends fewer.
func TestAnIdleClientSendsFewStatements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		clients, queues int
		all             bool
	}{
		"OneQueue": {1, 1, false}, "TwentyQueues": {1, 20, false}, "ThreeClients": {3, 20, false},
		"LinesAndSlots": {3, 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{})
			var cfg scheduler.Config
			if c.all {
				limit := ratelimit.MustDefine("idle", ratelimit.TokenBucket{Rate: 1, Period: time.Second,
					MaxReserved: ratelimit.Tokens(10)})
				cfg.Lines = []scheduler.Line{{Limit: limit}}
				held, err := slots.New(f.pool, slots.Config{})
				if err != nil {
					t.Fatal(err)
				}
				cfg.Slots = held
			}
			queues := map[string]river.QueueConfig{}
			for n := range c.queues {
				queues[fmt.Sprint("queue", n)] = river.QueueConfig{MaxWorkers: 1}
			}
			began, j := time.Now(), newJournal(f)
			var all []*recording
			for range c.clients {
				all = append(all, f.recorded(t, j, scheduler.New(f.limiter, cfg), queues))
			}
			const rounds = 5
			for _, r := range all {
				eventually(t, "rounds", func() bool {
					return r.of("turn 0") >= rounds && (!c.all || r.of("turn 1") >= rounds)
				})
			}
			check(t, all, c.all, began)
		})
	}
}

// recorded starts a client whose statements are recorded, without River's.
func (f *fixture) recorded(
	t *testing.T, j *journal, sched *scheduler.Scheduler, queues map[string]river.QueueConfig,
) *recording {
	t.Helper()
	r := &recording{n: map[string]int{}}
	cfg := f.pool.Config()
	cfg.ConnConfig.Tracer = r
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	j.client(t, nil, func(c *river.Config) {
		c.Queues = queues
		*c = *sched.Configure(pool, c)
	})
	return r
}

// check compares what clients have sent with what each may send since they began.
func check(t *testing.T, all []*recording, linesAndSlots bool, began time.Time) {
	t.Helper()
	gaps := map[string]time.Duration{"trips": time.Second,
		"turn 0": time.Second, "waiting": time.Second, "cancelled": 2 * time.Second, "lost": time.Minute}
	if linesAndSlots {
		gaps["turn 1"], gaps["slots"], gaps["lines"] = time.Second, time.Second, 500*time.Millisecond
		gaps["trips"] = time.Second / 5
	}
	sums, senders := map[string]int{}, map[string]int{}
	for i, r := range all {
		r.mu.Lock()
		t.Logf("client %d: %v", i, r.n)
		for what, n := range r.n {
			if gap, known := gaps[what]; !known {
				t.Errorf("client %d sent %d times %s", i, n, what)
			} else if most := first(what, linesAndSlots) + int(time.Since(began)/gap); n > most {
				t.Errorf("client %d sent %d statements for %s, want at most %d", i, n, what, most)
			}
			sums[what] += n
			senders[what]++
		}
		r.mu.Unlock()
	}
	// These are only sent by the client whose turn it is.
	for _, what := range []string{"waiting", "cancelled", "lost", "slots"} {
		if gap, known := gaps[what]; known {
			most := senders[what] + int(time.Since(began)/gap)
			if n := sums[what]; n == 0 || n > most {
				t.Errorf("all sent %d statements for %s, want 1 to %d", n, what, most)
			}
		}
	}
}

// first is how many of them a client may send at once. The first time that it has the turn, it asks
// for it before it looks, and then looks for what is lost. That is three trips, besides one for
// lines and two for slots.
func first(what string, linesAndSlots bool) int {
	switch {
	case what == "trips" && linesAndSlots:
		return 6
	case what == "trips":
		return 3
	}
	return 1
}
