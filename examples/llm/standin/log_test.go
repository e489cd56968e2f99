package standin

import (
	"testing"
	"time"
)

const second = time.Second

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestTheLogAdmitsNoMoreThanFitsIntoAnyInterval(t *testing.T) {
	t.Parallel()
	l := NewLog(10*second, 100, 4)
	for i, step := range []struct {
		at    time.Duration
		n     int
		ok    bool
		after time.Duration
	}{
		{0, 60, true, 0},
		{1 * second, 30, true, 0},
		{2 * second, 20, false, 8 * second},    // when the 60 leave
		{2 * second, 10, true, 0},              // exactly full
		{9 * second, 1, false, 1 * second},     // full
		{10 * second, 60, true, 0},             // the 60 have left
		{10 * second, 1, false, 1 * second},    // full again; the 30 leave at 11
		{11 * second, 10, true, 0},             // 10 + 60 + 10
		{11 * second, 1, true, 0},              // the fourth request of the window
		{11 * second, 1, false, 1 * second},    // no fifth, though there are tokens
		{12 * second, 1, true, 0},              // the one at 2 s has left
		{12 * second, 101, false, 10 * second}, // more than there ever is
	} {
		_, after, ok := l.Admit(start.Add(step.at), step.n)
		if ok != step.ok || after != step.after {
			t.Errorf("step %d %+v: got %v, %v", i, step, ok, after)
		}
	}
	if l.Peak() != 1 || l.Refused() != 5 || len(l.Calls()) != 7 {
		t.Errorf("peak %v, %d refused, %d admitted", l.Peak(), l.Refused(), len(l.Calls()))
	}
	if got := l.Load(start.Add(20 * second)); got != 0.12 {
		t.Errorf("load %v, want the 10, 1 and 1 of the last ten seconds", got)
	}
}

// A call takes its estimate while it is under way. What it does not use is there for others once it
// is done, and for them only then; what it uses beyond counts too.
func TestTheLogCountsWhatWasUsedInThePlaceOfTheEstimate(t *testing.T) {
	t.Parallel()
	l := NewLog(10*second, 100, 10)
	admit := func(at time.Duration, n int, want bool) int {
		t.Helper()
		call, _, ok := l.Admit(start.Add(at), n)
		if ok != want {
			t.Errorf("%d tokens at %v: admitted %v", n, at, ok)
		}
		return call
	}
	want := func(at time.Duration, load, peak float64) {
		t.Helper()
		if got := l.Load(start.Add(at)); got != load || l.Peak() != peak {
			t.Errorf("at %v: load %v, peak %v, want %v, %v", at, got, l.Peak(), load, peak)
		}
	}
	first := admit(0, 60, true)
	second1 := admit(1*second, 30, true)
	admit(2*second, 20, false)
	want(2*second, 0.9, 0.9)
	l.Done(start.Add(2*second), first, 15)
	want(2*second, 0.45, 0.9)
	admit(3*second, 56, false)
	admit(3*second, 35, true) // 15 used, and 30 and 35 under way
	want(3*second, 0.8, 0.9)
	l.Done(start.Add(4*second), second1, 60) // more than the estimate
	want(4*second, 1.1, 1.1)
	admit(9*second, 1, false)
	want(10*second, 0.95, 1.1) // the first has left, with what it used
	if calls := l.Calls(); calls[0].Tokens != 15 || !calls[0].Done || calls[2].Tokens != 35 || calls[2].Done {
		t.Errorf("got %+v", calls)
	}
}
