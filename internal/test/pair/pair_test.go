package pair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func durations(n ...time.Duration) []time.Duration { return n }

func TestTrimmed(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range time.Duration(100) {
		hundred = append(hundred, 100-i)
	}
	if got := trimmed(hundred); len(got) != 95 || got[0] != 1 || got[94] != 95 {
		t.Errorf("got %v, want 1 to 95", got)
	}
	if hundred[0] != 100 {
		t.Error("it sorted its argument")
	}
	for _, c := range []struct{ in, want []time.Duration }{
		{nil, nil},
		{durations(7), durations(7)},
		{durations(9, 7), durations(7)}, // a twentieth of two is rounded up
	} {
		if got := trimmed(c.in); !slices.Equal(got, c.want) {
			t.Errorf("of %v got %v, want %v", c.in, got, c.want)
		}
	}
}

func TestMeanAndMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in     []time.Duration
		mean   float64
		median time.Duration
	}{
		{nil, 0, 0},
		{durations(5), 5, 5},
		{durations(9, 1, 2), 4, 2},
		{durations(4, 1, 2, 3), 2.5, 2},
		{durations(math.MaxInt64, math.MaxInt64), math.MaxInt64, math.MaxInt64}, // their sum does not fit
	} {
		if m, p := mean(c.in), median(c.in); m != c.mean || p != c.median {
			t.Errorf("of %v got %v and %v, want %v and %v", c.in, m, p, c.mean, c.median)
		}
	}
}

// Of each of its turns a side has 19 that count and one that does not.
func TestJudge(t *testing.T) {
	t.Parallel()
	of := func(d time.Duration) []time.Duration {
		return append(slices.Repeat(durations(d), 19), time.Hour)
	}
	v := judge(&samples{first: of(101), again: of(99), ours1: of(120), ours2: of(130)})
	want := verdict{ratio: 100.0 / 125, control: 101.0 / 99, ours: 125, base: 100, oursP50: 130,
		baseP50: 101, measured: 40}
	if v != want {
		t.Errorf("got %+v, want %+v", v, want)
	}
}

func TestVoid(t *testing.T) {
	t.Parallel()
	for control, want := range map[float64]bool{
		1: false, 0.97: false, 1.03: false, 0.9699: true, 1.0301: true, 0: true, math.Inf(1): true, math.NaN(): true,
	} {
		if got := (verdict{control: control}).void(); got != want {
			t.Errorf("a control of %v: %v", control, got)
		}
	}
	if !judge(&samples{}).void() {
		t.Error("a run without a transaction counts")
	}
}

// fake is a benchmark, and its clock, which stands still but for what transactions add.
type fake struct {
	loops    int // that it asks for
	time     time.Time
	metrics  map[string]float64
	log      string
	failed   string
	finished bool // it was told the end of the loop
}

func (f *fake) now() time.Time                      { return f.time }
func (f *fake) since(began time.Time) time.Duration { return f.time.Sub(began) }

func (*fake) Context() context.Context           { return context.Background() }
func (f *fake) Fatal(args ...any)                { f.failed = fmt.Sprint(args...); panic(f) }
func (f *fake) Fatalf(format string, a ...any)   { f.failed = fmt.Sprintf(format, a...); panic(f) }
func (*fake) Helper()                            {}
func (f *fake) Logf(format string, a ...any)     { f.log += fmt.Sprintf(format, a...) + "\n" }
func (f *fake) ReportMetric(n float64, u string) { f.metrics[u] = n }

func (f *fake) Loop() bool {
	if f.finished {
		f.Fatal("Loop called again")
	}
	f.loops--
	f.finished = f.loops < 0
	return !f.finished
}

// takes makes a transaction that takes so long each time that it is called.
func (f *fake) takes(how func(n int) time.Duration) func(context.Context) error {
	n := 0
	return func(context.Context) error {
		f.time = f.time.Add(how(n))
		n++
		return nil
	}
}

// runs returns when the benchmark has ended, well or not.
func (f *fake) runs(sides ...Sides) {
	f.metrics = map[string]float64{}
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
	}()
	run(f, f, sides[0].Metric, sides)
}

func constant(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

func TestRun(t *testing.T) {
	t.Parallel()
	for loops, want := range map[int]int{1: rounds, rounds: rounds, 2*rounds + 1: 2*rounds + 1} {
		f := &fake{loops: loops}
		f.runs(Sides{"x-it", f.takes(constant(100)), f.takes(constant(125))})
		for unit, want := range map[string]float64{
			"ns/op": 125, "x-it": 0.8, "control": 1, "base-ns/op": 100, "p50-ns": 125,
			"base-p50-ns": 100, "tx": 2 * float64(want), "void": 0,
		} {
			if got, ok := f.metrics[unit]; !ok || got != want {
				t.Errorf("with %d loops %s is %v, want %v", loops, unit, got, want)
			}
		}
		if f.failed != "" || f.log != "" || !f.finished {
			t.Errorf("failed %q, said %q, finished %v", f.failed, f.log, f.finished)
		}
	}
}

// calls is how many transactions of a side precede a run's first.
const calls = 2*warmUp + tally

// twice makes each second turn of the base slower, from the beginning of a run on. The order of its
// turns in four rounds is first again, again first, again first, first again.
func twice(d time.Duration) func(n int) time.Duration {
	return func(n int) time.Duration {
		if n -= calls; n < 0 || !slices.Contains([]int{1, 2, 4, 7}, n%8) {
			return 100
		}
		return d
	}
}

func TestAVoidRunIsNeverReported(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.runs(Sides{"x-it", f.takes(twice(104)), f.takes(constant(100))})
	if !strings.Contains(f.failed, "no result: 5 runs were void, with controls of [0.962 0.962 0.962 0.962 0.962]") {
		t.Errorf("it failed by %q", f.failed)
	}
	if len(f.metrics) != 0 || strings.Count(f.log, "0.962") != 5 {
		t.Errorf("it reported %v and said %q", f.metrics, f.log)
	}
}

func TestAVoidRunIsRepeated(t *testing.T) {
	t.Parallel()
	f := &fake{loops: rounds + 4}
	slow := twice(104)
	f.runs(Sides{"x-it", f.takes(func(n int) time.Duration {
		if n >= calls+2*2*(rounds+4) { // after two runs
			return 100
		}
		return slow(n)
	}), f.takes(constant(100))})
	if f.failed != "" || f.metrics["void"] != 2 || f.metrics["x-it"] != 1 ||
		f.metrics["tx"] != 2*(rounds+4) || strings.Count(f.log, "void") != 2 {
		t.Errorf("failed %q, reported %v, said %q", f.failed, f.metrics, f.log)
	}
}

// Each of the four turns comes first, second, third and last equally often, the sides alternate in
// a round, and each comes after itself as often as the other does.
func TestOrder(t *testing.T) {
	t.Parallel()
	var order strings.Builder
	say := func(c byte) func(context.Context) error {
		return func(context.Context) error { order.WriteByte(c); return nil }
	}
	if _, err := measure(t.Context(), clock{}, []Sides{{"", say('b'), say('o')}}, limit(8)); err != nil {
		t.Fatal(err)
	}
	if got, want := order.String(), strings.Repeat("bobo"+"obob", 4); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	counts := map[int]int{}
	for n := range turns {
		for i := range turns {
			counts[i*turns+(n+i)%turns]++
		}
	}
	if len(counts) != turns*turns {
		t.Errorf("the turns and their places: %v", counts)
	}
}

func TestAnErrorOfEitherSideFails(t *testing.T) {
	t.Parallel()
	oops := errors.New("oops")
	for _, at := range []int{0, 2 * warmUp, calls, calls + 100} { // warming up, counting, measuring
		for _, name := range []string{"base", "ours"} {
			f := &fake{}
			n := 0
			good := func(context.Context) error { return nil }
			bad := func(context.Context) error {
				if n++; n > at {
					return oops
				}
				return nil
			}
			s := Sides{"x-it", good, bad}
			if name == "base" {
				s = Sides{"x-it", bad, good}
			}
			f.runs(s)
			if !strings.HasSuffix(f.failed, "oops") || len(f.metrics) > 0 {
				t.Errorf("%s at %d: failed by %q, reported %v", name, at, f.failed, f.metrics)
			}
		}
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	var n [4]atomic.Int64
	sides := make([]Sides, len(n))
	for i := range sides {
		do := func(context.Context) error { n[i].Add(1); return nil }
		sides[i] = Sides{"x-it", do, do}
	}
	s, err := measure(t.Context(), clock{}, sides, func() bool { // until each has had its turn
		for i := range n {
			if n[i].Load() < 40 {
				return true
			}
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	var all int64
	for i := range n {
		all += n[i].Load()
	}
	if got := len(slices.Concat(s[:]...)); int64(got) != all {
		t.Errorf("%d were measured of %d", got, all)
	}

	oops := errors.New("oops") // of any of them ends all
	sides[2].Base = func(context.Context) error { return oops }
	if _, err := measure(t.Context(), clock{}, sides, func() bool { return true }); !errors.Is(err, oops) {
		t.Error(err)
	}
}

// With a real benchmark and a real clock, the standard line has the metrics.
func TestRealBenchmark(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: takes a second")
	}
	spin := func(d time.Duration) func(context.Context) error {
		return func(context.Context) error {
			for began := time.Now(); time.Since(began) < d; {
			}
			return nil
		}
	}
	var r testing.BenchmarkResult
	for try := 1; r.N == 0 && try <= 10; try++ { // a machine that is too busy has no result
		r = testing.Benchmark(func(b *testing.B) {
			Run(b, Sides{"x-it", spin(20 * time.Microsecond), spin(40 * time.Microsecond)})
		})
	}
	if x := r.Extra["x-it"]; x <= 0 || r.NsPerOp() < 40_000 { // how large it is depends on what else the machine does
		t.Errorf("a ratio of %v: %v", x, r)
	}
}
