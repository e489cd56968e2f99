package standin

import (
	"testing"
	"time"
)

func TestTheLogAdmitsNoMoreThanFitsIntoAnyInterval(t *testing.T) {
	t.Parallel()
	const second = time.Second
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
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
		after, ok := l.Admit(start.Add(step.at), step.n)
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
