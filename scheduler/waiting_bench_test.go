package scheduler_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// BenchmarkWaitingJobs is what waiting jobs cost while none is due: with 50,000 of them, statements
// a second of four clients, River's own and each BEGIN and COMMIT among them, and with 100,000
// River's fetch, by that beside as many scheduled jobs of River alone: with none available yet, and
// with the most that rounds make available ahead of time.
func BenchmarkWaitingJobs(b *testing.B) {
	b.Run("statements", func(b *testing.B) {
		f, sched, _ := exact(b)
		f.reserveMany(b, sched, 50_000)
		cfg, sent := f.pool.Config(), &counting{}
		cfg.ConnConfig.Tracer = sent
		pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(pool.Close) // after the clients have stopped
		of := *f
		of.pool = pool
		clients := newJournal(&of)
		for range 4 {
			clients.client(b, sched)
		}
		time.Sleep(10 * time.Second) // rounds have seen them all
		before, began := sent.n.Load(), time.Now()
		time.Sleep(20 * time.Second)
		b.ReportMetric(float64(sent.n.Load()-before)/time.Since(began).Seconds(), "statements/s")
	})
	b.Run("fetch", func(b *testing.B) {
		const n = 100_000
		reserved, sched, j := exact(b)
		reserved.reserveMany(b, sched, n)
		plain := setUp(b, scheduler.Config{})
		many := make([]river.InsertManyParams, 0, 2000)
		for i := range n {
			many = append(many, river.InsertManyParams{Args: sendArgs{i},
				InsertOpts: &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)}})
			if len(many) == cap(many) {
				if _, err := plain.client.InsertManyFast(b.Context(), many); err != nil {
					b.Fatal(err)
				}
				many = many[:0]
			}
		}
		var with, without fetches
		for f, at := range map[*fixture]*fetches{reserved: &with, plain: &without} {
			if _, err := f.pool.Exec(b.Context(), `VACUUM ANALYZE river_job`); err != nil {
				b.Fatal(err)
			}
			quick := func(c *river.Config) {
				c.FetchPollInterval = 20 * time.Millisecond
				c.FetchCooldown = 10 * time.Millisecond
				c.Plugins = append(c.Plugins, at)
			}
			if f == plain {
				newJournal(plain).client(b, nil, quick)
			} else {
				j.client(b, sched, quick)
			}
		}
		time.Sleep(20 * time.Second)
		b.ReportMetric(with.median()/without.median(), "x-plain")
		b.ReportMetric(with.median()*1e6, "us/fetch")

		if _, err := reserved.pool.Exec(b.Context(), `UPDATE river_job SET state = 'available',
			scheduled_at = now() + interval '1 minute'
			WHERE id IN (SELECT id FROM river_job ORDER BY scheduled_at LIMIT $1)`, riverjob.MostAvailable); err != nil {
			b.Fatal(err)
		}
		with.forget()
		without.forget()
		time.Sleep(20 * time.Second)
		b.ReportMetric(with.median()/without.median(), "x-plain-near")
	})
}

// fetches are how long River's fetches took.
type fetches struct {
	river.PluginDefaults
	mu  sync.Mutex
	all []time.Duration
}

func (f *fetches) MetricEmit(_ context.Context, params *rivertype.HookMetricEmitParams) {
	if m, ok := params.Metric.(*rivertype.JobGetAvailableDurationMetric); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all = append(f.all, m.Duration)
	}
}

func (f *fetches) median() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.all)
	return f.all[len(f.all)/2].Seconds()
}

func (f *fetches) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = nil
}

// reserveMany inserts jobs that wait: the first are due in two minutes, the others up to hours
// later.
func (f *fixture) reserveMany(b *testing.B, sched *scheduler.Scheduler, n int) {
	b.Helper()
	limit := ratelimit.MustDefine("waiting",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	jobs := sched.Jobs(f.client)
	for i := 0; i < n; i += 1000 {
		params := make([]scheduler.InsertManyParams, 1000)
		for k := range params {
			count := 1.0
			if i+k == 0 {
				count = 1200 // two minutes
			}
			params[k] = scheduler.InsertManyParams{Args: sendArgs{i + k},
				Requests: []ratelimit.Request{limit.Global().Count(count).OrReserve()}}
		}
		err := pgx.BeginFunc(b.Context(), f.pool, func(tx pgx.Tx) error {
			in, err := jobs.InsertManyTx(b.Context(), tx, params)
			if err == nil {
				err = in.Err()
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if _, err := f.pool.Exec(b.Context(), `VACUUM ANALYZE river_job`); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkExtendedPause is what it costs that a pause is extended again and again over 20,000 jobs
// that are due: row versions a job and second of pause, and how long a job of another key that is
// inserted meanwhile waits.
func BenchmarkExtendedPause(b *testing.B) {
	const n, times, pause = 20_000, 4, 3 * time.Second
	f, sched, j := exact(b)
	limit := ratelimit.MustDefine("extendedPause",
		ratelimit.TokenBucket{Rate: 1000, Period: time.Second, Capacity: ratelimit.Tokens(n)})
	jobs := sched.Jobs(f.client)
	for range n / 1000 {
		params := make([]scheduler.InsertManyParams, 1000)
		for k := range params {
			params[k] = scheduler.InsertManyParams{Args: sendArgs{k}, Requests: []ratelimit.Request{limit.For("a")}}
		}
		f.inBench(b, func(tx pgx.Tx) error {
			_, err := jobs.InsertManyTx(b.Context(), tx, params)
			return err
		})
	}
	if _, err := f.pool.Exec(b.Context(), `VACUUM ANALYZE river_job`); err != nil {
		b.Fatal(err)
	}
	a := f.limiter.Autocommit(f.pool)
	extend := func() {
		if err := a.Pause(b.Context(), pause, limit.For("a")); err != nil {
			b.Fatal(err)
		}
	}
	extend()
	f.noteVersions(b)
	j.client(b, sched)
	var inserted []time.Time
	for i := range times {
		extend()
		inserted = append(inserted, f.now(b))
		f.inBench(b, func(tx pgx.Tx) error {
			_, err := jobs.InsertTx(b.Context(), tx, sendArgs{-1 - i}, nil, limit.For("b"))
			return err
		})
		time.Sleep(pause - time.Second)
	}
	var waited time.Duration
	eventually(b, "the other key's jobs start", func() bool {
		n := 0
		for _, s := range j.await(b, 0) {
			if s.n < 0 {
				waited = max(waited, s.at.Sub(inserted[-1-s.n]))
				n++
			}
		}
		return n == times
	})
	var versions float64
	if err := f.pool.QueryRow(b.Context(), `SELECT count(*) FROM version`).Scan(&versions); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(versions/n/times, "versions/job-and-pause")
	b.ReportMetric(waited.Seconds()*1000, "other-key-ms")
}

func (f *fixture) inBench(b *testing.B, fn func(tx pgx.Tx) error) {
	b.Helper()
	if err := pgx.BeginFunc(b.Context(), f.pool, fn); err != nil {
		b.Fatal(err)
	}
}
