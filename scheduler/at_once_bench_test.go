package scheduler_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/slots"
)

// BenchmarkAtOnce has forty jobs of one key run one at a time, by AtOnce, and by the recipe that
// takes a slot without waiting and snoozes the job for a second if there is none.
//
//	p50-ms, p99-ms   from the end of a job's work to the start of the next one
//	updates/job      row versions of river_job that were written, with River's own two
//
// Released and Expired are how long a job waits after another process has released the slot, or
// after the slot of a killed one has expired. Both are found by a round.
func BenchmarkAtOnce(b *testing.B) {
	const jobs = 40
	for _, way := range []string{"AtOnce", "Snooze"} {
		b.Run(way, func(b *testing.B) {
			var waits []time.Duration
			updates, n := 0, 0
			for b.Loop() {
				c := newCrew(b, 1)
				var mu sync.Mutex
				var ended time.Time
				work := func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					if !ended.IsZero() {
						waits = append(waits, time.Since(ended))
					}
					time.Sleep(20 * time.Millisecond)
					ended = time.Now()
					return nil
				}
				c.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error { return work(ctx) }
				if way == "Snooze" {
					c.j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] { return w }
					c.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
						hold, err := c.slots.TryAcquire(ctx, c.limit.For("0"))
						if errors.Is(err, slots.ErrFull) {
							return river.JobSnooze(time.Second)
						} else if err != nil {
							return err
						}
						defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
						return work(ctx)
					}
				}
				for i := range jobs {
					c.insert(i, nil)
				}
				client := c.client(10)
				eventually(b, "all jobs are completed", func() bool {
					return c.count(`SELECT count(*) FROM river_job WHERE state = 'completed'`) == jobs
				})
				stop(b, client)
				n += jobs
				c.pool.Reset() // connections write their statistics when they close
				time.Sleep(2 * time.Second)
				updates += c.count(`SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'river_job'::regclass`)
			}
			slices.Sort(waits)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(waits[len(waits)/2]), "p50-ms")
			b.ReportMetric(ms(waits[len(waits)*99/100]), "p99-ms")
			b.ReportMetric(float64(updates)/float64(n), "updates/job")
		})
	}
	for _, way := range []string{"Released", "Expired"} {
		b.Run(way, func(b *testing.B) {
			var waits []time.Duration
			c := newCrew(b, 1)
			s, err := slots.New(c.pool, slots.Config{TTL: time.Second, Logger: quiet()}) // which is not closed
			if err != nil {
				b.Fatal(err)
			}
			c.client(10)
			for i := range 20 {
				h, err := s.TryAcquire(b.Context(), c.limit.For("0"))
				if err != nil {
					b.Fatal(err)
				}
				c.insert(i, nil)
				c.awaitWaiting(1)
				time.Sleep(rand.N(time.Second)) // the rounds are a second apart
				var free time.Time
				if way == "Released" {
					free = time.Now()
					err = h.Release(b.Context())
				} else {
					const killed = `UPDATE weir_slot SET holder = gen_random_uuid(), until = now() + interval '0.2 s'
						WHERE name = 'crew' RETURNING until`
					err = c.pool.QueryRow(b.Context(), killed).Scan(&free)
				}
				if err != nil {
					b.Fatal(err)
				}
				starts := c.j.await(b, i+1)
				waits = append(waits, starts[i].at.Sub(free))
				eventually(b, "the slot is free again", func() bool {
					n, err := c.slots.Held(b.Context(), c.limit.For("0"))
					return err == nil && n == 0
				})
			}
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(waits[len(waits)-1].Milliseconds()), "max-ms")
		})
	}
}
