package otelweir

import (
	"context"
	"errors"
	"math"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

const hour = time.Hour

// Each limit of each call is counted by what became of it, with its tokens, its fill and its wait.
func TestDecisionsAreCountedByWhatBecameOfThem(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	auto := r.limiter(t).Autocommit(pgtest.Pool(t))
	calls := ratelimit.MustDefine("calls", ratelimit.TokenBucket{Rate: 10, Period: hour})
	tokens := ratelimit.MustDefine("tokens", ratelimit.TokenBucket{Rate: 100, Period: hour})
	trial := ratelimit.MustDefine("calls", ratelimit.TokenBucket{Rate: 2, Period: hour}, ratelimit.Shadow())
	for _, requests := range [][]ratelimit.Request{
		{calls.For("a").Count(8)},
		{calls.For("a"), tokens.For("a").Count(50)},
		{calls.For("a").Count(4), tokens.For("a").Count(10)}, // calls denies: 3 more come in 18 minutes
		{calls.For("a").Count(4).OrReserve()},                // in 18 minutes
		{tokens.For("b"), trial.For("b")},
		{tokens.For("b"), trial.For("b").Count(2)}, // it would have denied: one more comes in half an hour
		{calls.For("a"), trial.For("b")},           // denied: in 24 minutes; the shadow is not asked
	} {
		if _, err := auto.RateLimit(t.Context(), requests...); err != nil {
			t.Fatal(err)
		}
	}
	for _, requests := range [][]ratelimit.Request{{calls.For("a").Count(-1), tokens.For("a")}, nil,
		{ratelimit.Request{}}} {
		if _, err := auto.RateLimit(t.Context(), requests...); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Fatal(err)
		}
	}
	r.counts(t, "weir.decisions", map[string]float64{
		"calls granted": 2, "calls ahead": 1, "calls denied": 2, "calls error invalid": 1,
		"tokens granted": 3, "tokens undecided": 1, "tokens error invalid": 1,
		"calls (shadow) granted": 1, "calls (shadow) shadow_denied": 1, "calls (shadow) undecided": 1,
		"error invalid": 2,
	})
	r.counts(t, "weir.tokens", map[string]float64{"calls": 13, "tokens": 52, "calls (shadow)": 1})
	for _, want := range []struct {
		name   string
		labels []string
		point
	}{
		{"weir.wait", []string{"weir.limit", "calls", "weir.outcome", "denied"}, point{(18 + 24) * 60, 2, 24 * 60}},
		{"weir.wait", []string{"weir.limit", "calls", "weir.outcome", "ahead"}, point{18 * 60, 1, 18 * 60}},
		{"weir.wait", []string{"weir.limit", "calls (shadow)", "weir.outcome", "shadow_denied"}, point{30 * 60, 1, 30 * 60}},
		{"weir.limit.used", []string{"weir.limit", "calls"}, point{0.8 + 0.9 + 0.9 + 1 + 1, 5, 1}},
		{"weir.limit.used", []string{"weir.limit", "tokens"}, point{0.5 + 0.5 + 0.01 + 0.02, 4, 0.5}},
		{"weir.limit.used", []string{"weir.limit", "calls (shadow)"}, point{0.5 + 0.5, 2, 0.5}},
		{"weir.decision.together", []string{"weir.limit", "calls", "weir.outcome", "granted"}, point{1, 1, 1}},
		{"weir.decision.together", []string{"weir.outcome", "granted"}, point{3, 3, 1}}, // of several limits
		{"weir.decision.together", []string{"weir.outcome", "denied"}, point{2, 2, 1}},
		{"weir.decision.together", []string{"weir.limit", "calls", "weir.outcome", "ahead"}, point{1, 1, 1}},
		{"weir.decision.round_trips", []string{"weir.limit", "calls", "weir.outcome", "granted"}, point{1, 1, 1}},
		{"weir.decision.round_trips", []string{"weir.outcome", "error", "error.type", "invalid"}, point{0, 3, 0}},
	} {
		got := r.point(t, want.name, want.labels...)
		if math.Abs(got.sum-want.sum) > 1e-6 || got.count != want.count || math.Abs(got.most-want.most) > 1e-6 {
			t.Errorf("%s %v: %+v, want %+v", want.name, want.labels, got, want.point)
		}
	}
	if n := len(r.series(t)["weir.wait"]); n != 3 {
		t.Errorf("%d series of waits", n)
	}
	d := r.point(t, "weir.decision.duration", "weir.limit", "calls", "weir.outcome", "granted")
	if d.count != 1 || d.sum <= 0 || d.sum > 600 {
		t.Errorf("duration %+v", d)
	}
}

// Calls that are decided together are each counted, and say how many they were.
func TestCallsThatAreDecidedTogetherAreMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	c := r.limiter(t).Coalesce(pgtest.Pool(t))
	defer c.Close()
	l := ratelimit.MustDefine("together", ratelimit.TokenBucket{Rate: 1000, Period: hour})
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if res, err := c.RateLimit(context.Background(), l.For("k").Count(2)); err != nil || !res.OK {
				t.Error(res, err)
			}
		})
	}
	wg.Wait()
	r.counts(t, "weir.decisions", map[string]float64{"together granted": 200})
	r.counts(t, "weir.tokens", map[string]float64{"together": 400})
	p := r.point(t, "weir.decision.together", "weir.limit", "together", "weir.outcome", "granted")
	if p.count != 200 || p.most < 2 || p.sum < 202 {
		t.Errorf("together %+v", p)
	}
}

// A take of a lease is counted as it is handed out, though it says nothing of the row.
func TestTakesOfALeaseAreMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	l, err := ratelimit.New(ratelimit.Config{Observer: r})
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.MustDefine("leased", ratelimit.TokenBucket{Rate: 10, Period: 24 * hour})
	lease, err := l.Lease(pgtest.Pool(t), limit.For("k"), ratelimit.LeaseConfig{Block: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []float64{4, 5, 3} { // the last is denied: two hours are missing at least
		if _, err := lease.Take(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := lease.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Take(t.Context(), 1); !errors.Is(err, ratelimit.ErrClosed) {
		t.Fatal(err)
	}
	r.counts(t, "weir.decisions", map[string]float64{"leased granted": 2, "leased denied": 1, "leased error closed": 1})
	r.counts(t, "weir.tokens", map[string]float64{"leased": 9})
	p := r.point(t, "weir.wait", "weir.limit", "leased", "weir.outcome", "denied")
	if p.count != 1 || p.sum < 3600 || p.sum > 48*3600 {
		t.Errorf("wait %+v", p)
	}
	if n := len(r.series(t)["weir.limit.used"]); n != 0 {
		t.Errorf("%d series of what is used", n)
	}
}

// Transactions are measured by how they ended. To be denied is no error.
func TestTransactionsAreMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	l, pool := r.limiter(t), pgtest.Pool(t)
	bucket := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 3, Period: hour})
	stop, runs := errors.New("stop"), 0
	in := func(n float64, end error, before func(context.Context, pgx.Tx)) error {
		return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			before(ctx, tx)
			res, err := l.RateLimit(ctx, tx, bucket.For("k").Count(n))
			if err != nil {
				return err
			}
			return errors.Join(res.Err(), end)
		})
	}
	nothing := func(context.Context, pgx.Tx) {}
	rival := func(ctx context.Context, tx pgx.Tx) {
		if runs++; runs > 1 {
			return
		}
		if _, err := tx.Exec(ctx, `SELECT count(*) FROM weir_balance`); err != nil { // a snapshot
			t.Error(err)
		}
		if _, err := l.Autocommit(pool).RateLimit(context.WithoutCancel(t.Context()), bucket.For("k")); err != nil {
			t.Error(err)
		}
	}
	if err := in(1, nil, nothing); err != nil {
		t.Fatal(err)
	}
	if err := in(3, nil, nothing); !errors.Is(err, ratelimit.ErrDenied) {
		t.Fatal(err)
	}
	if err := in(1, stop, rival); !errors.Is(err, stop) || runs != 2 {
		t.Fatal(err, runs)
	}
	committed := []string{"weir.outcome", "committed"}
	denied := []string{"weir.outcome", "denied"}
	other := []string{"weir.outcome", "error", "error.type", "_OTHER"}
	for _, want := range []struct {
		labels   []string
		attempts float64
	}{{committed, 1}, {denied, 1}, {other, 2}} {
		if p := r.point(t, "weir.tx.attempts", want.labels...); p.count != 1 || p.sum != want.attempts {
			t.Errorf("%v: %+v attempts, want %v", want.labels, p, want.attempts)
		}
		took, queued := r.point(t, "weir.tx.duration", want.labels...), r.point(t, "weir.tx.queued", want.labels...)
		if took.count != 1 || took.sum <= 0 || queued.count != 1 ||
			(queued.sum > 0) != (want.attempts > 1) || queued.sum > took.sum {
			t.Errorf("%v: took %+v, queued %+v", want.labels, took, queued)
		}
	}
	r.counts(t, "weir.decisions",
		map[string]float64{"bucket granted": 3, "bucket denied": 1, "bucket error conflict": 1})
}

// A database that is away is an error of a kind of its own.
func TestADatabaseThatIsAwayIsMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	pool, err := pgxpool.New(t.Context(), "postgres://weir@127.0.0.1:1/weir?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	auto := r.limiter(t).Autocommit(pool)
	l := ratelimit.MustDefine("away", ratelimit.TokenBucket{Rate: 3, Period: hour})
	if _, err := auto.RateLimit(t.Context(), l.For("k")); err == nil {
		t.Fatal("no error")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := auto.RateLimit(gone, l.For("k")); err == nil {
		t.Fatal("no error")
	}
	if _, err := r.limiter(t).Autocommit(pgtest.Bare(t)).RateLimit(t.Context(), l.For("k")); err == nil {
		t.Fatal("no error")
	}
	r.counts(t, "weir.decisions", map[string]float64{"away error connection": 1,
		"away error canceled": 1, "away error database": 1})
}

// The package's page lists each instrument, with its kind and its unit.
func TestThePageListsTheInstruments(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(weir\.\S+) +(counter|histogram) +(\S+) `).
		FindAllSubmatch(page, -1) {
		listed[string(m[1])] = string(m[2]) + " " + string(m[3])
	}
	r := newRig(t, Config{})
	l := ratelimit.MustDefine("l", ratelimit.TokenBucket{Rate: 1, Period: hour})
	auto := r.limiter(t).Autocommit(pgtest.Pool(t))
	for range 2 {
		if _, err := auto.RateLimit(t.Context(), l.Global()); err != nil {
			t.Fatal(err)
		}
	}
	r.Transacted(t.Context(), ratelimit.TransactedEvent{})
	made := r.metrics(t)
	for _, m := range made {
		kind := "histogram"
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			kind = "counter"
		case metricdata.Sum[float64]:
			kind = "counter"
		case metricdata.Histogram[float64]:
			if m.Name == "weir.limit.used" && (d.DataPoints[0].Bounds[4] != 0.8 || d.DataPoints[0].Bounds[8] != 1) {
				t.Errorf("%s has borders %v", m.Name, d.DataPoints[0].Bounds)
			}
		}
		if want := kind + " " + m.Unit; listed[m.Name] != want || m.Description == "" {
			t.Errorf("%s is a %s (%q), and listed as %q", m.Name, want, m.Description, listed[m.Name])
		}
	}
	if len(made) != len(listed) || len(made) != 10 {
		t.Errorf("%d instruments, %d listed", len(made), len(listed))
	}
}
