package scheduler_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// BenchmarkBusyWorkers is how late jobs start when workers are three quarters busy: four clients of
// five workers, 225 jobs of 0 to 6 s, five a second. Beside it, at the same time and on the same
// server, River alone works jobs with the same due times and durations. Three runs are pooled.
// x-plain is the ratio of a quantile to River's.
//
// Saturated is the throughput of two clients of 50 workers with more immediate jobs of 50 ms than
// they can work, with the scheduler's configuration by that without, in alternating slices.
func BenchmarkBusyWorkers(b *testing.B) {
	b.Run("lateness", func(b *testing.B) {
		var with, plain []time.Duration
		for range 3 {
			w, p := busy(b)
			with, plain = append(with, w...), append(plain, p...)
		}
		slices.Sort(with)
		slices.Sort(plain)
		at := func(late []time.Duration, q float64) float64 {
			return late[int(q*float64(len(late)-1))].Seconds() * 1000
		}
		for _, q := range []struct {
			name string
			q    float64
		}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}} {
			b.ReportMetric(at(with, q.q)/at(plain, q.q), "x-plain-"+q.name)
			b.ReportMetric(at(with, q.q), q.name+"-ms")
			b.ReportMetric(at(plain, q.q), "plain-"+q.name+"-ms")
		}
		b.ReportMetric(float64(len(with)), "jobs")
	})
	b.Run("saturated", saturated)
}

// busy returns how late the jobs of both sides started.
func busy(b *testing.B) (with, plain []time.Duration) {
	b.Helper()
	const clients, workers, jobs = 4, 5, 225
	const longest = 6 * time.Second
	rate := 0.75 * clients * workers / (longest.Seconds() / 2)
	limit := ratelimit.MustDefine("busyWorkers",
		ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	var takes [jobs]time.Duration
	for i := range takes {
		takes[i] = rand.N(longest)
	}
	side := func(configured bool) (*fixture, *journal, *river.Client[pgx.Tx], *scheduler.Jobs) {
		f := setUp(b, scheduler.Config{})
		sched := scheduler.New(f.limiter, scheduler.Config{})
		j := newJournal(f)
		j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
			sleepFor(ctx, takes[job.Args.N])
			return nil
		}
		of := sched
		if !configured {
			of = nil
		}
		var last *river.Client[pgx.Tx]
		for range clients {
			last = j.client(b, of, func(c *river.Config) {
				c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
			})
		}
		return f, j, last, sched.Jobs(last)
	}
	f, ours, _, reserved := side(true)
	_, theirs, client, _ := side(false)
	time.Sleep(2 * time.Second) // they have leaders, and their connections
	var due [jobs]time.Time
	for i := range jobs {
		err := f.limiter.InTx(b.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
			in, err := reserved.InsertTx(ctx, tx, sendArgs{i}, nil, limit.Global().OrReserve())
			if err == nil {
				due[i] = latestOf(in.At, in.Job.Job.ScheduledAt)
			}
			return err
		})
		if err == nil {
			_, err = client.Insert(b.Context(), sendArgs{i}, &river.InsertOpts{ScheduledAt: due[i]})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	late := func(j *journal) (all []time.Duration) {
		eventually(b, "all have started", func() bool { return len(j.await(b, 0)) >= jobs })
		for _, s := range j.await(b, jobs) {
			all = append(all, max(time.Millisecond/10, s.at.Sub(due[s.n])))
		}
		return all
	}
	return late(ours), late(theirs)
}

func latestOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func saturated(b *testing.B) {
	const slices, slice = 3, 4 * time.Second
	type side struct {
		done  atomic.Int64
		start func() (stop func())
	}
	prepare := func(configured bool) *side {
		f := setUp(b, scheduler.Config{})
		var many []river.InsertManyParams
		for i := range 40_000 {
			many = append(many, river.InsertManyParams{Args: sendArgs{i}})
			if len(many) == 2000 {
				if _, err := f.client.InsertManyFast(b.Context(), many); err != nil {
					b.Fatal(err)
				}
				many = many[:0]
			}
		}
		if _, err := f.pool.Exec(b.Context(), `ANALYZE river_job`); err != nil {
			b.Fatal(err)
		}
		s := &side{}
		s.start = func() func() {
			var clients []*river.Client[pgx.Tx]
			for range 2 {
				workers := river.NewWorkers()
				river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[sendArgs]) error {
					sleepFor(ctx, 50*time.Millisecond)
					s.done.Add(1)
					return nil
				}))
				cfg := &river.Config{Logger: quiet(), Workers: workers,
					Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}}}
				if configured {
					cfg = scheduler.New(f.limiter, scheduler.Config{}).Configure(f.pool, cfg)
				}
				client, err := river.NewClient(riverpgxv5.New(f.pool), cfg)
				if err == nil {
					err = client.Start(context.WithoutCancel(b.Context()))
				}
				if err != nil {
					b.Fatal(err)
				}
				clients = append(clients, client)
			}
			return func() {
				var wg sync.WaitGroup
				for _, c := range clients {
					wg.Go(func() { stop(b, c) })
				}
				wg.Wait()
			}
		}
		return s
	}
	with, plain := prepare(true), prepare(false)
	var counts [2]int64
	for range slices {
		for i, s := range []*side{with, plain} {
			end := s.start()
			time.Sleep(time.Second)
			before := s.done.Load()
			time.Sleep(slice)
			counts[i] += s.done.Load() - before
			end()
		}
	}
	b.ReportMetric(float64(counts[0])/float64(counts[1]), "x-saturated")
	b.ReportMetric(float64(counts[0])/(slices*slice.Seconds()), "jobs/s")
}
