package pair

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// Crowd are two ways in which a number of workers do a transaction over and over, all of them the
// same way at the same time. Each call is told which worker makes it: 0, 1 and so on. An error
// fails the benchmark.
type Crowd struct {
	Metric     string
	Base, Ours func(ctx context.Context, worker int) error
	Workers    int
	Slice      time.Duration // how long they work at a time. Default: 500 ms
	Rounds     int           // that a run has at least. Default: 8
}

// sliceRounds are the rounds that a run of Slices has at least, by default.
const sliceRounds = 8

// Slices compares the throughput of two sides. It is [Run] with slices of time in place of
// transactions: the turns of a round, the control, what makes a run void, and the fastest 95 % are
// the same. What counts of a slice is its length by the transactions that ended within it; those
// under way at its end are awaited, and count as slow as they were, but for no slice. The line has
//
//	ns/op          the mean time from the end of a transaction to that of the next, of ours: the crowd's, not a worker's
//	x-...          that of the base by that of ours, under the name that was asked for: 0.5 is half the throughput
//	control        the base's by its own
//	base-ns/op     the base's
//	p50-ms, p99-ms how long a transaction took its worker, of ours; base-p50-ms, base-p99-ms, of the base
//	tx             how many transactions of ours were measured
//	void           how many runs were void before this one
//	B/op           what one of ours allocates in this process, beside allocs/op
//
// A run takes as many rounds as fit into -benchtime, and never fewer than Crowd.Rounds.
func Slices(b *testing.B, c Crowd) {
	b.Helper()
	c.compare(b)
}

// work is what a side has done in slices of time.
type work struct {
	times         []time.Duration // of all transactions
	allocs, bytes uint64
}

func (c Crowd) compare(b bench) {
	b.Helper()
	if c.Slice == 0 {
		c.Slice = 500 * time.Millisecond
	}
	if c.Rounds == 0 {
		c.Rounds = sliceRounds
	}
	ctx := b.Context()
	if _, _, _, err := c.measure(ctx, limit(1)); err != nil { // warms up
		b.Fatal(err)
	}
	var ours, base work
	v, void := repeat(b, c.Rounds, func(loop func() bool) (s *samples, err error) {
		s, base, ours, err = c.measure(ctx, loop)
		return s, err
	})
	v.report(b, c.Metric, void)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(median(ours.times)), "p50-ms")
	b.ReportMetric(ms(percentile(ours.times, 0.99)), "p99-ms")
	b.ReportMetric(ms(median(base.times)), "base-p50-ms")
	b.ReportMetric(ms(percentile(base.times, 0.99)), "base-p99-ms")
	n := float64(len(ours.times))
	b.ReportMetric(n, "tx")
	b.ReportMetric(float64(ours.bytes)/n, "B/op")
	b.ReportMetric(float64(ours.allocs)/n, "allocs/op")
}

// measure lets the crowd work, in turns, as long as loop says. A sample is the time from one
// transaction to the next, in the mean of a slice.
func (c Crowd) measure(ctx context.Context, loop func() bool) (s *samples, base, ours work,
	err error) {
	runtime.GC()
	s = &samples{}
	for n := 0; loop(); n++ {
		for i := range turns {
			turn := (n + i) % turns
			do, side, name := c.Base, &base, "base"
			if turn == ours1 || turn == ours2 {
				do, side, name = c.Ours, &ours, "ours"
			}
			ended, err := c.slice(ctx, do, side)
			if err != nil {
				return nil, base, ours, fmt.Errorf("%s: %w", name, err)
			}
			s[turn] = append(s[turn], c.Slice/time.Duration(ended))
		}
	}
	return s, base, ours, nil
}

// slice lets the crowd work for one slice, adds what it did to w, and counts the transactions that
// ended in time.
func (c Crowd) slice(ctx context.Context, do func(context.Context, int) error, w *work) (ended int,
	err error) {
	var (
		wg            sync.WaitGroup
		times         = make([][]time.Duration, c.Workers)
		inTime        = make([]int, c.Workers)
		errs          = make([]error, c.Workers)
		before, after runtime.MemStats
	)
	runtime.ReadMemStats(&before)
	end := time.Now().Add(c.Slice)
	for i := range c.Workers {
		wg.Go(func() {
			for began := time.Now(); began.Before(end); {
				if errs[i] = do(ctx, i); errs[i] != nil {
					return
				}
				now := time.Now()
				times[i] = append(times[i], now.Sub(began))
				if !now.After(end) {
					inTime[i]++
				}
				began = now
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	w.times = append(w.times, slices.Concat(times...)...)
	w.allocs += after.Mallocs - before.Mallocs
	w.bytes += after.TotalAlloc - before.TotalAlloc
	for _, n := range inTime {
		ended += n
	}
	if ended == 0 {
		return 0, fmt.Errorf("no transaction ended within a slice of %v", c.Slice)
	}
	return ended, nil
}
