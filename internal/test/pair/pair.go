// Package pair compares two ways of doing a transaction, in Go's own benchmarks, on a machine that
// does other things as well.
//
//	pair.Run(b, pair.Sides{Metric: "x-inserttx", Base: theirs, Ours: ours})
//
// Only what was measured at the same time can be compared there. So the two sides alternate,
// transaction by transaction, on whatever connection they were given: one round is
//
//	base, ours, base again, ours again
//
// and each round starts one further on than the one before, so that neither side always comes after
// the other. What the base took in its first turns against what it took in the others is the
// control. It should be 1: a run in which it is not within 0.97 and 1.03 is void, and is done
// again. If five in a row are void the benchmark fails, and reports no ratio.
//
// Of each side the fastest 95 % count. The line has
//
//	ns/op          their mean, of ours
//	x-...          the base's mean by ours, under the name that was asked for: 1 is as fast, 0.5 takes twice as long
//	control        the base's mean by its own
//	base-ns/op     the base's mean
//	p50-ns         the median, of ours; base-p50-ns, of the base: of all transactions, not only of the fastest
//	tx             how many transactions of each side were measured
//	void           how many runs were void before this one
//	B/op           what one of ours allocates in this process, and base-allocs/op beside allocs/op what the base does
//
// A run takes as many rounds as fit into -benchtime, and never fewer than 3000.
//
// # Throughput
//
// Where it matters what callers do to each other, both sides at once would meet each other as well.
// So [Slices] compares what a crowd of workers gets done in a slice of time by either side, in the
// same turns.
package pair

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Sides are the two ways, and the name of the metric that compares them. Both are to make the same
// round trips on the same connection. An error of either fails the benchmark.
type Sides struct {
	Metric     string
	Base, Ours func(ctx context.Context) error
}

const (
	rounds = 3000 // that a run has at least, over all goroutines
	warmUp = 300  // that precede it
	tally  = 200  // transactions over which allocations are counted
)

// Run compares two sides and reports what package pair says.
func Run(b *testing.B, s Sides) {
	b.Helper()
	run(b, clock{}, s.Metric, []Sides{s})
}

// Together is Run by several goroutines at once, which share nothing but what their sides share:
// each alternates between the sides that it is given. All transactions of all of them count
// together, and the names of the metric are the same.
func Together(b *testing.B, sides ...Sides) {
	b.Helper()
	run(b, clock{}, sides[0].Metric, sides)
}

// bench is what is needed of a *testing.B.
type bench interface {
	Context() context.Context
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Helper()
	Logf(format string, args ...any)
	Loop() bool
	ReportMetric(n float64, unit string)
}

// timer tells how long something takes; tests replace it.
type timer interface {
	since(began time.Time) time.Duration
	now() time.Time
}

type clock struct{}

func (clock) now() time.Time                      { return time.Now() }
func (clock) since(began time.Time) time.Duration { return time.Since(began) }

// The turns of a round.
const (
	first = iota // of the base
	ours1
	again // the base, as the control
	ours2
	turns
)

// samples are how long the transactions took, by turn.
type samples [turns][]time.Duration

func run(b bench, t timer, metric string, sides []Sides) {
	b.Helper()
	ctx := b.Context()
	warm := limit((warmUp + len(sides) - 1) / len(sides))
	if _, err := measure(ctx, t, sides, warm); err != nil {
		b.Fatal(err)
	}
	allocs, bytes, err := allocations(ctx, sides[0].Ours)
	if err != nil {
		b.Fatal(err)
	}
	baseAllocs, _, err := allocations(ctx, sides[0].Base)
	if err != nil {
		b.Fatal(err)
	}

	least := (rounds + len(sides) - 1) / len(sides)
	v, void := repeat(b, least, func(loop func() bool) (*samples, error) {
		return measure(ctx, t, sides, loop)
	})
	v.report(b, metric, void)
	b.ReportMetric(float64(v.oursP50), "p50-ns")
	b.ReportMetric(float64(v.baseP50), "base-p50-ns")
	b.ReportMetric(float64(v.measured), "tx")
	b.ReportMetric(bytes, "B/op")
	b.ReportMetric(allocs, "allocs/op")
	b.ReportMetric(baseAllocs, "base-allocs/op")
}

// repeat measures until a run is not void, and tells how many were. The first run has as many
// rounds as the benchmark asks for, and never fewer than least; the others have as many as the
// first.
func repeat(b bench, least int, measure func(loop func() bool) (*samples, error)) (v verdict,
	void int) {
	b.Helper()
	done, asking := 0, true
	loop := func() bool {
		asking = asking && b.Loop() // which is not to be called once it has said no
		more := asking || done < least
		if more {
			done++
		}
		return more
	}
	var controls []float64
	for {
		s, err := measure(loop)
		if err != nil {
			b.Fatal(err)
		}
		loop = limit(done)
		v := judge(s)
		if !v.void() {
			return v, len(controls)
		}
		controls = append(controls, v.control)
		b.Logf("void: the base took %.3f times as long as itself", v.control)
		if len(controls) == attempts {
			b.Fatalf("no result: %d runs were void, with controls of %.3f, outside of %v to %v: the machine is too busy",
				attempts, controls, lowest, highest)
		}
	}
}

// report is what every comparison has.
func (v verdict) report(b bench, metric string, void int) {
	b.ReportMetric(v.ours, "ns/op")
	b.ReportMetric(v.ratio, metric)
	b.ReportMetric(v.control, "control")
	b.ReportMetric(v.base, "base-ns/op")
	b.ReportMetric(float64(void), "void")
}

// limit is a loop of n rounds.
func limit(n int) func() bool {
	return func() bool { n--; return n >= 0 }
}

// measure runs the sides of each goroutine, in turns, as long as loop says. It is the first
// goroutine that asks, and the others keep it company until it has done.
func measure(ctx context.Context, t timer, sides []Sides, loop func() bool) (*samples, error) {
	runtime.GC()
	var (
		all  = make([]samples, len(sides))
		errs = make([]error, len(sides))
		over atomic.Bool
		wg   sync.WaitGroup
	)
	work := func(i int, more func() bool) {
		for n := i; more(); n++ { // they start with different turns
			if errs[i] = all[i].round(ctx, t, &sides[i], n); errs[i] != nil {
				break
			}
		}
		over.Store(true) // an error ends all of them
	}
	for i := 1; i < len(sides); i++ {
		wg.Go(func() { work(i, func() bool { return !over.Load() }) })
	}
	work(0, func() bool { return !over.Load() && loop() })
	wg.Wait()

	var s samples
	for i := range all {
		if errs[i] != nil {
			return nil, errs[i]
		}
		for turn := range s {
			s[turn] = append(s[turn], all[i][turn]...)
		}
	}
	return &s, nil
}

// round measures the nth round.
func (s *samples) round(ctx context.Context, t timer, sides *Sides, n int) error {
	for i := range turns {
		turn := (n + i) % turns
		do, name := sides.Base, "base"
		if turn == ours1 || turn == ours2 {
			do, name = sides.Ours, "ours"
		}
		began := t.now()
		err := do(ctx)
		took := t.since(began)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s[turn] = append(s[turn], took)
	}
	return nil
}

// allocations counts what one transaction allocates, in the mean of some.
func allocations(ctx context.Context, do func(context.Context) error) (allocs, bytes float64,
	err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range tally {
		if err := do(ctx); err != nil {
			return 0, 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / tally,
		float64(after.TotalAlloc-before.TotalAlloc) / tally, nil
}
