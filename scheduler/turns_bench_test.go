package scheduler_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// counting counts the statements of a pool.
type counting struct{ n atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counting) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (c *counting) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { c.n.Add(1) }
func (c *counting) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// crowd is a line in which very many jobs wait.
type crowd struct {
	*fixture
	b          testing.TB
	j          *journal
	limit      ratelimit.Limit
	statements counting
	costs      []float64 // of the jobs, by their numbers
	tenants    []int
	queued     []time.Time
}

// theCrowd makes a limit of so many tokens a second, and clients with so many workers each.
func theCrowd(b testing.TB, rate float64) *crowd {
	b.Helper()
	c := &crowd{b: b}
	c.limit = ratelimit.MustDefine(strings.ReplaceAll(b.Name(), "/", " "), ratelimit.TokenBucket{Rate: rate,
		Period: time.Second, MaxReserved: ratelimit.Tokens(1000 * rate)})
	c.fixture, _, c.j = queuing(b, scheduler.Line{Limit: c.limit})
	return c
}

// work starts clients. Weir's own statements go by a pool that counts them.
func (c *crowd) work(clients, workers int) {
	c.b.Helper()
	cfg := c.pool.Config()
	cfg.ConnConfig.Tracer = &c.statements
	pool, err := pgxpool.NewWithConfig(c.b.Context(), cfg)
	if err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(pool.Close)
	sched := scheduler.New(c.limiter, scheduler.Config{Jitter: -1, Lines: []scheduler.Line{{Limit: c.limit}}})
	for range clients {
		c.j.client(c.b, nil, func(cfg *river.Config) {
			cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
			*cfg = *sched.Configure(pool, cfg)
		})
	}
}

// queue queues n jobs of a tenant.
func (c *crowd) queue(tenant, n int, cost func() float64) {
	c.b.Helper()
	now := c.now(c.b)
	var params []scheduler.QueueManyParams
	for range n {
		number := len(c.costs)
		c.costs, c.tenants, c.queued = append(c.costs, cost()), append(c.tenants, tenant), append(c.queued, now)
		params = append(params, scheduler.QueueManyParams{Args: sendArgs{number},
			Tenant:   scheduler.Tenant{Key: fmt.Sprint(tenant)},
			Requests: []ratelimit.Request{c.limit.Global().Count(c.costs[number])}})
	}
	for part := range slices.Chunk(params, 1000) {
		c.inRC(c.b, func(tx pgx.Tx) error {
			_, err := c.jobs.QueueManyTx(c.b.Context(), tx, part)
			return err
		})
	}
}

// versions are the row versions of river_job, and those of Weir's own tables, so far.
func (c *crowd) versions() (jobs, own float64) {
	c.b.Helper()
	time.Sleep(1500 * time.Millisecond) // until the server's counters are written
	const sql = `SELECT coalesce(sum(n_tup_ins + n_tup_upd) FILTER (WHERE relname = 'river_job'), 0)::float8,
		coalesce(sum(n_tup_ins + n_tup_upd) FILTER (WHERE relname LIKE 'weir\_%'), 0)::float8
		FROM pg_stat_user_tables WHERE schemaname = current_schema()`
	if err := c.pool.QueryRow(c.b.Context(), sql).Scan(&jobs, &own); err != nil {
		c.b.Fatal(err)
	}
	return jobs, own
}

// starts are those between two instants.
func (c *crowd) starts(from, to time.Time) (some []start) {
	for _, s := range c.j.await(c.b, 0) {
		if !s.at.Before(from) && s.at.Before(to) {
			some = append(some, s)
		}
	}
	return some
}

// BenchmarkLateTenant is how long a tenant waits that comes late and wants little, behind 20,000
// waiting jobs of three greedy ones, with workers that are free and with workers at half of the
// limit's rate; and beside that behind as many plain reservations.
func BenchmarkLateTenant(b *testing.B) {
	const rate, cost, greedy, most = 1000, 10, 3, 20_000
	for name, workers := range map[string]int{"free": 50, "half": 5} {
		b.Run(name, func(b *testing.B) {
			c := theCrowd(b, rate)
			if name == "half" {
				c.j.work = func(context.Context, *river.Job[sendArgs]) error {
					time.Sleep(100 * time.Millisecond)
					return nil
				}
			}
			for t := range greedy {
				c.queue(t, most/greedy, func() float64 { return cost })
			}
			c.work(1, workers)
			time.Sleep(5 * time.Second)
			jobs, own := c.versions()
			statements, from := c.statements.n.Load(), c.now(b)
			first := len(c.costs)
			for range 40 {
				c.queue(greedy, 1, func() float64 { return cost })
				time.Sleep(time.Second)
			}
			to := c.now(b)
			seconds := to.Sub(from).Seconds()
			b.ReportMetric(float64(c.statements.n.Load()-statements)/seconds, "statements/s")
			time.Sleep(5 * time.Second)
			jobsAfter, ownAfter := c.versions()
			all := c.starts(from, c.now(b))
			b.ReportMetric((jobsAfter-jobs)/float64(len(all)), "job-versions/job")
			b.ReportMetric((ownAfter-own)/float64(len(all)), "own-versions/job")
			b.ReportMetric(float64(len(c.starts(from, to))*cost)/seconds/rate, "x-rate")
			var waits []float64
			for _, s := range all {
				if s.n >= first {
					waits = append(waits, s.at.Sub(c.queued[s.n]).Seconds())
				}
			}
			slices.Sort(waits)
			if len(waits) == 0 {
				b.Fatal("the late tenant has had no turn")
			}
			b.ReportMetric(waits[len(waits)/2], "wait-p50-s")
			b.ReportMetric(waits[len(waits)*99/100], "wait-p99-s")
			b.ReportMetric(float64(len(waits)), "waits")
		})
	}
	b.Run("reserved", func(b *testing.B) {
		c := theCrowd(b, rate)
		var params []scheduler.InsertManyParams
		for i := range most {
			params = append(params, scheduler.InsertManyParams{Args: sendArgs{i},
				Requests: []ratelimit.Request{c.limit.Global().Count(cost).OrReserve()}})
		}
		for part := range slices.Chunk(params, 1000) {
			c.inRC(b, func(tx pgx.Tx) error { _, err := c.jobs.InsertManyTx(b.Context(), tx, part); return err })
		}
		c.inRC(b, func(tx pgx.Tx) error {
			in, err := c.jobs.InsertTx(b.Context(), tx, sendArgs{}, nil, c.limit.Global().Count(cost).OrReserve())
			b.ReportMetric(in.RunAt.Sub(in.At).Seconds(), "wait-p50-s")
			return err
		})
	})
}

// BenchmarkFewWorkers is what five workers do in 20 s of jobs of 100 ms that all could start, as a
// share of the 50 a second that they could do: of a line with twice as many tokens, and beside that
// of plain jobs, with Configure and by River alone.
func BenchmarkFewWorkers(b *testing.B) {
	const rate, workers, most, each = 100, 5, 2000, 100 * time.Millisecond
	for _, way := range []string{"line", "configured", "river"} {
		b.Run(way, func(b *testing.B) {
			c := theCrowd(b, rate)
			c.j.work = func(context.Context, *river.Job[sendArgs]) error { time.Sleep(each); return nil }
			if way == "line" {
				c.queue(0, most, func() float64 { return 1 })
			} else {
				var params []river.InsertManyParams
				for i := range most {
					params = append(params, river.InsertManyParams{Args: sendArgs{i}})
				}
				if _, err := c.client.InsertMany(b.Context(), params); err != nil {
					b.Fatal(err)
				}
			}
			if way == "river" {
				c.j.client(b, nil, func(cfg *river.Config) {
					cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
				})
			} else {
				c.work(1, workers)
			}
			time.Sleep(3 * time.Second)
			from := c.now(b)
			time.Sleep(20 * time.Second)
			to := c.now(b)
			b.ReportMetric(float64(len(c.starts(from, to)))*each.Seconds()/to.Sub(from).Seconds()/workers, "x-workers")
		})
	}
}

// BenchmarkTenantsShares is how evenly 100 tenants with costs from 100 to 30,000 share a limit over
// a minute: Jain's index of what they got, and how far the one that is furthest is from its share,
// in the largest count.
func BenchmarkTenantsShares(b *testing.B) {
	const tenants, least, largest = 100, 100, 30_000
	const rate = tenants * (least + largest) / 2 // a job a second for each tenant
	c := theCrowd(b, rate)
	draw := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same jobs in each run
	for t := range tenants {
		c.queue(t, 130, func() float64 { return math.Round(least + (largest-least)*draw.Float64()) })
	}
	c.work(1, 100)
	time.Sleep(5 * time.Second)
	from := c.now(b)
	time.Sleep(time.Minute)
	to := c.now(b)
	got, total, squares, off := make([]float64, tenants), 0.0, 0.0, 0.0
	for _, s := range c.starts(from, to) {
		got[c.tenants[s.n]] += c.costs[s.n]
	}
	for _, n := range got {
		total, squares = total+n, squares+n*n
	}
	for _, n := range got {
		off = max(off, math.Abs(n-total/tenants)/largest)
	}
	b.ReportMetric(total*total/(tenants*squares), "jain")
	b.ReportMetric(off, "off-largest")
	b.ReportMetric(total/to.Sub(from).Seconds()/rate, "x-rate")
}
