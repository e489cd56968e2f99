package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// half grants every other call.
type half struct{ calls atomic.Int64 }

func (h *half) take(context.Context, string) (bool, error) {
	time.Sleep(time.Millisecond)
	return h.calls.Add(1)%2 == 0, nil
}

func (*half) close() error { return nil }

func TestALoadCountsWhatEndedInItsTime(t *testing.T) {
	t.Parallel()
	var h half
	var s slice
	for range 20 { // on a busy machine no call may end in one of the two times
		h.calls.Store(0)
		got, err := load{8, numbered(3), 50 * time.Millisecond, 100 * time.Millisecond}.run(t.Context(), &h)
		if err != nil {
			t.Fatal(err)
		}
		if s = *got; s.calls > 0 && s.times.n < s.all {
			break
		}
	}
	made := int(h.calls.Load())
	if s.all != made || s.granted != made/2 {
		t.Errorf("%d calls and %d grants are told of %d and %d", s.all, s.granted, made, made/2)
	}
	if s.calls == 0 || s.calls > s.times.n || s.times.n >= s.all {
		t.Errorf("%d calls ended in time, of %d that were not to warm up, of %d", s.calls, s.times.n, s.all)
	}
	if s.rate != float64(s.calls)*10 || s.elapsed < 150*time.Millisecond {
		t.Errorf("%v calls a second in %v", s.rate, s.elapsed)
	}
	if got := s.times.percentile(0); got < 900*time.Microsecond {
		t.Errorf("a call took %v, and sleeps a millisecond", got)
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) take(context.Context, string) (bool, error) { return false, errBroken }

func (broken) close() error { return nil }

func TestAnErrorIsNoDenial(t *testing.T) {
	t.Parallel()
	if _, err := (load{4, numbered(1), 0, time.Millisecond}).run(t.Context(), broken{}); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
	if err := touch(t.Context(), broken{}, numbered(10), 2); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

// A figure of denied calls would be taken for one of granted ones.
func TestADenialByAnAmpleLimitEndsTheRun(t *testing.T) {
	t.Parallel()
	c := contender{name: "half"}
	f := newFigures([]contender{c})
	s := setting{manyKeys, 16}
	b := &bench{config: quick, many: numbered(3), open: map[string]map[setting]limiter{"half": {s: &half{}}}}
	if err := b.slice(t.Context(), f, c, s); err == nil ||
		!strings.Contains(err.Error(), "half, many keys, 16 callers: an ample limit has denied") {
		t.Errorf("got %v", err)
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 ns", 999: "999 ns", 1500: "1.5 µs", 81 * time.Microsecond: "81 µs", 999_600: "1.0 ms",
		2100 * time.Millisecond: "2.1 s", time.Hour: "3600 s",
	} {
		if got := duration(d); got != want {
			t.Errorf("%d ns: got %q, want %q", d, got, want)
		}
	}
	for x, want := range map[float64]string{0: "0", 999.4: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(x); got != want {
			t.Errorf("%v: got %q, want %q", x, got, want)
		}
	}
	text := "- " + strings.Repeat("word ", 60)
	lines := strings.Split(wrap(text, "  "), "\n")
	if len(lines) != 3 || len(lines[0]) > 128 || len(lines[1]) > 128 || !strings.HasPrefix(lines[1], "  word") {
		t.Errorf("got %q", lines)
	}
	if got := strings.Fields(strings.Join(lines, " ")); len(got) != 61 {
		t.Errorf("%d words are left of 61", len(got))
	}
	for _, c := range []config{{length: 1, audit: 1, rounds: 1}, {length: 1, audit: 1, keys: 1},
		{audit: 1, rounds: 1, keys: 1}, {}, {length: 1, rounds: 1, keys: 1}} {
		if c.check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if err := quick.check(); err != nil {
		t.Error(err)
	}
}
