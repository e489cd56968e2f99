package wake_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/jobs/wake"
)

// answers returns a Waker whose looks the given one answers, by their numbers, and the times of
// these.
func answers(
	most int, look func(n int) (map[int64]wake.Seen, error),
) (w *wake.Waker, times func() []time.Duration) {
	var mu sync.Mutex
	var all []time.Duration
	began := time.Now()
	w = wake.New(func([]int64) (map[int64]wake.Seen, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, time.Since(began).Truncate(time.Millisecond))
		return look(len(all))
	}, most)
	return w, func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func TestHowOftenAJobIsLookedFor(t *testing.T) {
	t.Parallel()
	started := map[int64]wake.Seen{1: {State: "running"}}
	moved := map[int64]wake.Seen{1: {State: "available", Wait: time.Second}}
	const s, ms = time.Second, time.Millisecond
	scheduled := map[int64]wake.Seen{1: {State: "scheduled"}}
	for _, c := range []struct {
		name string
		back bool
		seen []map[int64]wake.Seen // by look after look; the last one again and again
		err  error
		want []time.Duration
	}{
		{"it starts", false, []map[int64]wake.Seen{started}, nil, []time.Duration{s}},
		{"the database is away", false, []map[int64]wake.Seen{nil}, errors.New("away"),
			[]time.Duration{s}},
		{"it was moved", false, []map[int64]wake.Seen{moved, started}, nil,
			[]time.Duration{s, 2*s + ms}},
		{"it is never committed", false, []map[int64]wake.Seen{nil}, nil,
			[]time.Duration{s, s + 5*ms, s + 15*ms, s + 35*ms, s + 75*ms, s + 155*ms, s + 315*ms,
				s + 635*ms, s + 1275*ms}},
		{"its put-off is written late", true, []map[int64]wake.Seen{started, started, scheduled}, nil,
			[]time.Duration{s, s + 5*ms, s + 15*ms}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, times := answers(10, func(n int) (map[int64]wake.Seen, error) {
				return c.seen[min(n, len(c.seen))-1], c.err
			})
			w.Add(1, time.Now().Add(s), c.back)
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := times(); !slices.Equal(got, c.want) || w.Len() != 0 {
				t.Errorf("%s: looked after %v; want %v", c.name, got, c.want)
			}
		})
	}
}

// However many jobs come due one after another, there are a hundred looks a second, and a hundred
// at once. No more jobs are remembered than may be.
func TestAWakerIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, times := answers(1000, func(int) (map[int64]wake.Seen, error) {
			return nil, errors.New("once is enough")
		})
		for id := range int64(1100) {
			w.Add(id, time.Now().Add(time.Duration(id)*time.Millisecond), false)
		}
		if n := w.Len(); n != 1000 {
			t.Errorf("%d jobs are remembered; want 1000", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(times()); n < 190 || n > 210 || w.Len() != 0 {
			t.Errorf("%d looks and %d jobs are left; want about 200, and none", n, w.Len())
		}
	})
}
