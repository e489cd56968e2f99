package ratelimit

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

func at(d time.Duration) time.Time { return fromMicro(noon).Add(d) }

func TestResultIsOfTheLimitWhoseTokensComeLast(t *testing.T) {
	t.Parallel()
	calls := resolved(t, pears.For("x"), apples.For("x"), apples.For("y"))
	in := func(d time.Duration) int64 { return at(d * time.Microsecond).UnixMicro() }
	clock := []int64{noon, noon + 5, noon + 3}
	for _, tc := range []struct {
		name     string
		verdicts []algebra.Verdict // of apples x, apples y, pears x
		ok       bool
		runAt    time.Time
		retryAt  time.Time
		of       *call
	}{
		{"granted now", []algebra.Verdict{{OK: true}, {OK: true}, {OK: true}}, true, time.Time{}, time.Time{}, nil},
		{"granted ahead", []algebra.Verdict{{OK: true, Ahead: true, RunAt: in(3)}, {OK: true, Ahead: true, RunAt: in(9)}, {OK: true}}, true, at(9 * time.Microsecond), time.Time{}, &calls[1]},
		{"denied by one", []algebra.Verdict{{OK: true}, {OK: true, Ahead: true, RunAt: in(9)}, {RetryAt: in(7)}}, false, time.Time{}, at(7 * time.Microsecond), &calls[2]},
		{"denied by two", []algebra.Verdict{{RetryAt: in(8)}, {OK: true}, {RetryAt: in(7)}}, false, time.Time{}, at(8 * time.Microsecond), &calls[0]},
	} {
		for i := range tc.verdicts {
			tc.verdicts[i].At = clock[i]
		}
		r := summarize(calls, tc.verdicts, nil)
		if r.OK != tc.ok || !r.RunAt.Equal(tc.runAt) || !r.RetryAt.Equal(tc.retryAt) ||
			!r.At.Equal(at(5*time.Microsecond)) {
			t.Errorf("%s: %+v", tc.name, r)
		}
		var limit, key string
		if tc.of != nil {
			limit, key = tc.of.Name, tc.of.Key
		}
		if r.Limit != limit || r.Key != key {
			t.Errorf("%s: of %q %q, want %q %q", tc.name, r.Limit, r.Key, limit, key)
		}
		if (r.Err() == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, r.Err())
		}
	}
}

func TestOutcomesAreInTheOrderOfTheRequests(t *testing.T) {
	t.Parallel()
	requests := []Request{pears.For("x"), apples.For("x"), pears.For("x"), apples.Global()}
	calls := resolved(t, requests...)
	verdicts, all := make([]algebra.Verdict, len(calls)), make([]took, len(calls))
	for i := range calls {
		all[i].Since = 1
		verdicts[i] = algebra.Verdict{OK: true, After: algebra.Balance{Value: float64(i)}}
	}
	r := summarize(calls, verdicts, all)
	var values []float64
	for i, o := range r.Outcomes {
		if o.Limit != requests[i].def.name || o.Key != requests[i].key || o.Period != time.Minute || !o.OK {
			t.Errorf("request %d: %+v", i, o)
		}
		values = append(values, o.Value)
	}
	if want := []float64{2, 1, 2, 0}; !slices.Equal(values, want) {
		t.Errorf("%v, want %v", values, want)
	}
	// What is to be given back is each row once, in the order in which it was locked.
	taken, err := r.taken()
	if err != nil || !slices.EqualFunc(taken, calls, func(a change, b call) bool {
		return a.Row == b.Row && a.Count == b.Count
	}) {
		t.Errorf("%+v (%v), want %+v", taken, err, calls)
	}
}

// An Outcome tells what a header field would say of the limit: its numbers, and when more of a
// window comes.
func TestOutcomesTellTheRuleThatDecided(t *testing.T) {
	t.Parallel()
	start := at(-90 * time.Second)
	window := MustDefine("window", FixedWindow{Rate: 3, Period: time.Minute, Capacity: Tokens(5), Start: start})
	plan := TokenBucket{Rate: 7, Period: time.Second, Capacity: Tokens(9)}
	calls := resolved(t, window.For("x"), apples.For("x").Rule(plan))
	r := summarize(calls, []algebra.Verdict{{OK: true, At: noon}, {OK: true, At: noon}}, nil)
	for _, o := range r.Outcomes {
		want := Outcome{Capacity: 9, Rate: 7, Period: time.Second}
		if o.Limit == "window" {
			want = Outcome{Capacity: 5, Rate: 3, Period: time.Minute, WindowEnds: at(30 * time.Second)}
		}
		if o.Capacity != want.Capacity || o.Rate != want.Rate || o.Period != want.Period ||
			!o.WindowEnds.Equal(want.WindowEnds) {
			t.Errorf("%s: %+v, want %+v", o.Limit, o, want)
		}
	}
}
