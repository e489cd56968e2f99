package ahead_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/dashboard"
	"github.com/weir-go/weir/dashboard/ahead"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ChatTokens = ratelimit.MustDefine("chatTokens",
	ratelimit.TokenBucket{Rate: 600, Period: time.Hour, Capacity: ratelimit.Tokens(10)})

type GenerateReply struct{}

func (GenerateReply) Kind() string { return "generate_reply" }

// enqueue inserts n jobs of ten tokens each.
func enqueue(ctx context.Context, limiter *ratelimit.Limiter, jobs *scheduler.Jobs, pool *pgxpool.Pool, n int) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		for range n {
			if _, err := jobs.InsertTx(ctx, tx, GenerateReply{}, nil,
				ChatTokens.For("acme").Count(10).OrReserve()); err != nil {
				return err
			}
		}
		return nil
	})
}

func newJobs(ctx context.Context, pool *pgxpool.Pool) (*ratelimit.Limiter, *scheduler.Jobs, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, nil, err
	}
	// inserts only
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return nil, nil, err
	}
	return limiter, scheduler.New(limiter, scheduler.Config{Jitter: -1}).Jobs(client), nil
}

func ExampleOf() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, jobs, err := newJobs(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := enqueue(ctx, limiter, jobs, pool, 3); err != nil {
		log.Fatal(err)
	}
	waiting := ahead.Of(pool, jobs)

	list, err := waiting(ctx, "chatTokens", "acme", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, j := range list {
		fmt.Println(j.Kind, "in", time.Until(j.Until).Round(time.Minute))
	}
	_, err = dashboard.New(pool, dashboard.Config{Ahead: waiting, InLine: ahead.InLine(pool, jobs)})
	fmt.Println(err)
	// Output:
	// generate_reply in 1m0s
	// generate_reply in 2m0s
	// <nil>
}

// The page lists the jobs that wait for a key, in the order in which they will start. A role that can
// only read is enough for that.
func TestThePageIsToldOfJobs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limiter, jobs, err := newJobs(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if err := enqueue(t.Context(), limiter, jobs, pool, 6); err != nil {
		t.Fatal(err)
	}
	if err := limiter.Autocommit(pool).Pause(t.Context(), 90*time.Second, ChatTokens.For("acme")); err != nil {
		t.Fatal(err)
	}
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	looks, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer looks.Close()
	client, err := river.NewClient(riverpgxv5.New(looks), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(key string) (answer struct {
		Jobs []struct {
			Kind   string
			Until  int64
			Paused bool
		}
		JobsError string
	}) {
		t.Helper()
		d, err := dashboard.New(looks, dashboard.Config{
			Ahead: ahead.Of(looks, scheduler.New(limiter, scheduler.Config{}).Jobs(client)),
		})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/balance?limit=chatTokens", nil)
		r.Header.Set("Weir-Key", key)
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return answer
	}
	got := ask("acme")
	if len(got.Jobs) != 5 || got.JobsError != "" || got.Jobs[0].Kind != "generate_reply" || !got.Jobs[0].Paused {
		t.Fatalf("%+v", got)
	}
	for i := range got.Jobs {
		in := time.Until(time.UnixMicro(got.Jobs[i].Until)) // a minute each, and the pause before the first
		if want := 90*time.Second + time.Duration(i+1)*time.Minute; in > want || in < want-30*time.Second {
			t.Errorf("job %d starts in %v, want %v", i, in, want)
		}
	}

	if _, err := pool.Exec(t.Context(), `ALTER TABLE river_job RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	if got := ask("acme"); got.JobsError == "" || got.Jobs != nil {
		t.Errorf("%+v", got)
	}
}

var SharedAPI = ratelimit.MustDefine("sharedAPI",
	ratelimit.TokenBucket{Rate: 10, Period: time.Second, MaxReserved: ratelimit.Tokens(10)})

// The page lists the tenants of a fair line in the order of their next turns, with a role that can
// only read.
func TestThePageIsToldOfALine(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limiter, _, err := newJobs(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	jobs := scheduler.New(limiter, scheduler.Config{Lines: []scheduler.Line{{Limit: SharedAPI}}}).Jobs(client)
	own := ratelimit.MustDefine("orgTokens",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(5)})
	if err := limiter.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, tenant := range []string{"greedy", "greedy", "greedy", "modest"} {
			_, err := jobs.QueueTx(ctx, tx, GenerateReply{}, nil, scheduler.Tenant{Key: tenant},
				SharedAPI.For("eu"), own.For(tenant))
			if err != nil {
				return err
			}
		}
		return limiter.Consume(ctx, tx, own.For("modest").Count(5))
	}); err != nil {
		t.Fatal(err)
	}
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	looks, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer looks.Close()
	tenants, more, err := ahead.InLine(looks, jobs)(t.Context(), "sharedAPI", "eu")
	if err != nil || more || len(tenants) != 2 {
		t.Fatalf("%+v (more: %v): %v", tenants, more, err)
	}
	greedy := dashboard.Tenant{Key: "greedy", Jobs: 3,
		Next: dashboard.Job{ID: tenants[0].Next.ID, Kind: "generate_reply"}, Turn: 1}
	modest := dashboard.Tenant{Key: "modest", Jobs: 1, Next: dashboard.Job{ID: tenants[1].Next.ID,
		Kind: "generate_reply"}, Turn: 2, PassedOver: "orgTokens"}
	if tenants[0] != greedy || tenants[1] != modest || tenants[0].Next.ID == 0 {
		t.Errorf("%+v, want %+v and %+v", tenants, greedy, modest)
	}
	if _, _, err := ahead.InLine(looks, scheduler.New(nil,
		scheduler.Config{}).Jobs(client))(t.Context(), "sharedAPI", "eu"); err == nil {
		t.Error("a line was listed without a limiter")
	}
}
