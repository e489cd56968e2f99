package bench

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// shortLine is what the paced lines owe, in units.
const shortLine = 3.0

// pacedReserve is a line that goes on to owe shortLine. Nothing is compared with a base: its slices
// would have the line repaid.
func pacedReserve(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	c, l := newCrowdBesideKeys(b), rig.Limiter(b, ratelimit.Config{})
	var r reservations
	r.fill(b, l, c.pool, hotLine, shortLine)
	r.paced(b, c.pool, count, func(ctx context.Context, worker int, n float64) error {
		return r.do(ctx, l, c.conns[worker], level, hotLine.Global().Count(n), &r.ideal)
	})
}

// pacedReserveOfProcesses is the same with a process for each caller.
func pacedReserveOfProcesses(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	c := newCrowdOfProcesses(b)
	var r reservations
	r.fill(b, rig.Limiter(b, ratelimit.Config{}), c.pool, hotLine, shortLine)
	r.paced(b, c.pool, count, func(_ context.Context, worker int, n float64) error {
		return r.ask(c, worker, level, n)
	})
}

// paced makes callers reserve at the rate of the limit, so that the line keeps its length. It reports
// when they are told to run.
func (r *reservations) paced(
	b *testing.B, pool *pgxpool.Pool, count func() float64,
	do func(ctx context.Context, worker int, n float64) error,
) {
	b.Helper()
	// Each turn comes when one line that has granted those before it owes shortLine. A turn that is
	// taken late delays none after it.
	var mu sync.Mutex
	next := r.at.Add(time.Duration((r.owed/(lineShards*lineMean) - shortLine) * unit))
	turn := func(n float64) time.Time {
		mu.Lock()
		defer mu.Unlock()
		at := next
		next = at.Add(time.Duration(n / lineRate * float64(time.Second)))
		return at
	}
	work := func(d time.Duration) {
		end := time.Now().Add(d)
		errs := make([]error, hotCallers)
		var wg sync.WaitGroup
		for w := range hotCallers {
			wg.Go(func() {
				for errs[w] == nil && time.Now().Before(end) {
					n := count()
					time.Sleep(time.Until(turn(n)))
					errs[w] = do(b.Context(), w, n)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			b.Fatal(err)
		}
	}
	work(time.Second) // warms up
	r.told = nil
	r.runs.Store(0)
	r.commits.Store(0)
	for b.Loop() {
		work(10 * time.Second)
	}
	r.held(b, pool)
	b.ReportMetric(0, "ns/op") // of slices
	b.ReportMetric(r.abortsPerCommit(), "aborts/commit")
	report(b, pool, &r.ideal)
}

// held checks that the line was one of about shortLine, and that the shards owe what it owes.
func (r *reservations) held(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	outside := 0
	for _, t := range r.told {
		if t.wait < shortLine-1 || t.wait > shortLine+1 {
			outside++
		}
	}
	if share := float64(outside) / float64(len(r.told)); share > 0.02 {
		b.Fatalf("no result: for %.2f of the calls the line did not owe %v to %v units: "+
			"the machine is too busy", share, shortLine-1, shortLine+1)
	}
	var at time.Time
	var owed float64
	if err := pool.QueryRow(b.Context(), `
		SELECT now(), sum(-value - rate * extract(epoch FROM now() - ts)) FROM weir_balance
		WHERE name = 'line' AND shard > 0 AND value > '-Infinity'`).Scan(&at, &owed); err != nil {
		b.Fatal(err)
	}
	one := r.owed - at.Sub(r.at).Seconds()*lineRate
	if math.Abs(owed-one) > lineShards*lineMean/10 {
		b.Fatalf("the shards owe %v tokens, and one line would owe %v", owed, one)
	}
}
