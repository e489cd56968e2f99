package pair

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// sleeps makes a transaction that takes so long each time, by the clock of a synctest bubble.
func sleeps(d time.Duration) func(context.Context, int) error {
	return func(context.Context, int) error { time.Sleep(d); return nil }
}

// slices returns when the benchmark has ended, well or not.
func (f *fake) slices(c Crowd) {
	f.metrics = map[string]float64{}
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
	}()
	c.compare(f)
}

func TestSlices(t *testing.T) {
	t.Parallel()
	for loops, rounds := range map[int]int{1: sliceRounds, 2*sliceRounds + 1: 2*sliceRounds + 1} {
		synctest.Test(t, func(t *testing.T) {
			f, began := &fake{loops: loops}, time.Now()
			f.slices(Crowd{Metric: "x-it", Base: sleeps(10 * ms), Ours: sleeps(20 * ms), Workers: 5})
			for unit, want := range map[string]float64{
				"ns/op": 4e6, "x-it": 0.5, "control": 1, "base-ns/op": 2e6, "void": 0,
				"p50-ms": 20, "p99-ms": 20, "base-p50-ms": 10, "base-p99-ms": 10, "tx": float64(2 * 125 * rounds),
			} {
				if got, ok := f.metrics[unit]; !ok || got != want {
					t.Errorf("with %d loops %s is %v, want %v", loops, unit, got, want)
				}
			}
			if f.failed != "" || f.log != "" || !f.finished {
				t.Errorf("failed %q, said %q, finished %v", f.failed, f.log, f.finished)
			}
			if took, want := time.Since(began), 4*time.Duration(rounds+1)*500*ms; took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
		})
	}
}

func TestSlicesOfMoreRounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{loops: 1}
		f.slices(Crowd{Metric: "x-it", Base: sleeps(10 * ms), Ours: sleeps(10 * ms), Workers: 1,
			Slice: 100 * ms, Rounds: 3 * sliceRounds})
		if want := float64(2 * 10 * 3 * sliceRounds); f.metrics["tx"] != want {
			t.Errorf("%v transactions were measured, want %v", f.metrics["tx"], want)
		}
	})
}

// Of workers who queue for one thing, each waits for all others, and as much gets done as by one
// alone.
func TestSlicesOfAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turn := make(chan struct{}, 1) // a mutex would keep the bubble's clock from going on
		f := &fake{}
		f.slices(Crowd{Metric: "x-it", Base: sleeps(10 * ms), Workers: 10, Slice: time.Second,
			Ours: func(context.Context, int) error {
				turn <- struct{}{}
				time.Sleep(10 * ms)
				<-turn
				return nil
			}})
		if f.metrics["x-it"] != 0.1 || f.metrics["ns/op"] != 10e6 || f.metrics["p50-ms"] != 100 {
			t.Errorf("failed %q, reported %v", f.failed, f.metrics)
		}
	})
}

// What is under way at the end of a slice has ended before the next begins, and counts for neither.
func TestSlicesDoNotOverlap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under atomic.Int64 // minus those of ours, plus those of the base
		way := func(d time.Duration, one int64) func(context.Context, int) error {
			return func(context.Context, int) error {
				if n := under.Add(one); n*one < 0 {
					t.Error("both sides at once")
				}
				time.Sleep(d)
				under.Add(-one)
				return nil
			}
		}
		f := &fake{}
		f.slices(Crowd{Metric: "x-it", Base: way(100*ms, 1), Ours: way(300*ms, -1), Workers: 2})
		if f.metrics["base-ns/op"] != 50e6 || f.metrics["ns/op"] != 250e6 || f.metrics["tx"] != 2*sliceRounds*2*2 {
			t.Errorf("failed %q, reported %v", f.failed, f.metrics)
		}
	})
}

func TestVoidSlicesAreNeverReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var began time.Time // of the first slice that is measured: a round warms up
		calls := 0
		f := &fake{}
		f.slices(Crowd{Metric: "x-it", Workers: 1, Ours: sleeps(10 * ms), Base: func(context.Context, int) error {
			if calls++; calls == 101 {
				began = time.Now()
			}
			d := 10 * ms
			if calls > 100 { // the order of its turns in four rounds is that of twice
				if n := int(time.Since(began)/(500*ms)) / 2 % 8; n == 1 || n == 2 || n == 4 || n == 7 {
					d = 12500 * time.Microsecond
				}
			}
			time.Sleep(d)
			return nil
		}})
		if len(f.metrics) != 0 || !strings.Contains(f.failed, "no result: 5 runs were void") ||
			strings.Count(f.log, "void") != 5 {
			t.Errorf("failed %q, said %q, reported %v", f.failed, f.log, f.metrics)
		}
	})
}

func TestAnErrorOfAnyWorkerFails(t *testing.T) {
	t.Parallel()
	oops := errors.New("oops")
	for _, name := range []string{"base", "ours"} {
		for _, after := range []time.Duration{0, 10 * time.Second} { // warming up, measuring
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				bad := func(_ context.Context, worker int) error {
					time.Sleep(ms)
					if worker == 3 && time.Since(began) > after {
						return oops
					}
					return nil
				}
				c := Crowd{Metric: "x-it", Base: bad, Ours: sleeps(ms), Workers: 5}
				if name == "ours" {
					c.Base, c.Ours = c.Ours, c.Base
				}
				f := &fake{}
				f.slices(c)
				if f.failed != name+": oops" || len(f.metrics) > 0 {
					t.Errorf("%s: failed %q, reported %v", name, f.failed, f.metrics)
				}
			})
		}
	}
}

func TestASliceInWhichNothingEndsFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.slices(Crowd{Metric: "x-it", Base: sleeps(ms), Ours: sleeps(time.Second), Workers: 2})
		if f.failed != "ours: no transaction ended within a slice of 500ms" {
			t.Errorf("failed %q, reported %v", f.failed, f.metrics)
		}
	})
}

func TestEachWorkerIsToldItsNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[int]int{}
		do := func(_ context.Context, worker int) error {
			time.Sleep(50 * ms)
			mu.Lock()
			seen[worker]++
			mu.Unlock()
			return nil
		}
		f := &fake{}
		f.slices(Crowd{Metric: "x-it", Base: do, Ours: do, Workers: 3})
		for i := range 3 {
			if want := (1 + sliceRounds) * turns * 10; seen[i] != want {
				t.Errorf("worker %d made %d calls, want %d: %v", i, seen[i], want, f.failed)
			}
		}
		if len(seen) != 3 {
			t.Errorf("workers %v", seen)
		}
	})
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range time.Duration(100) {
		hundred = append(hundred, 100-i)
	}
	for _, c := range []struct {
		in    []time.Duration
		share float64
		want  time.Duration
	}{
		{hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0.5, 50}, {hundred, 0, 1},
		{durations(3), 0.99, 3}, {durations(4, 3), 0.99, 4}, {nil, 0.99, 0},
	} {
		if got := percentile(c.in, c.share); got != c.want {
			t.Errorf("of %d at %v got %v, want %v", len(c.in), c.share, got, c.want)
		}
	}
}
