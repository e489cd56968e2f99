package slots_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// modelHold is what the model knows of a slot that was granted.
type modelHold struct {
	h        *slots.Hold
	by       int // the process
	key      string
	number   int
	until    time.Time
	released bool
	lost     bool
}

// Whatever several processes do, in any order, and however time passes by the database's clock:
// what they are told is what a list of the slots that are held says.
func TestEveryOperationDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	const ttl = time.Hour // so that nothing happens by itself
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		var mu sync.Mutex
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		clock := func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		}
		limit := slots.MustDefine(fmt.Sprint("model", run), 3)
		all := make([]*slots.Slots, 3)
		for i := range all {
			all[i] = open(t, pool, slots.Config{TTL: ttl, Clock: clock, Logger: silent})
		}
		var holds []*modelHold
		live := func(key string) (numbers map[int]bool) {
			numbers = map[int]bool{}
			for _, m := range holds {
				if m.key == key && !m.released && m.until.After(now) {
					numbers[m.number] = true
				}
			}
			return numbers
		}
		last := map[string]int64{} // token of each slot
		keys := rapid.SampledFrom([]string{"a", "b"})
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				by, key, n := rapid.IntRange(0, len(all)-1).Draw(rt, "process"),
					keys.Draw(rt, "key"), rapid.IntRange(1, 5).Draw(rt, "n")
				held := live(key)
				h, err := all[by].TryAcquire(t.Context(), limit.For(key).Of(n))
				if len(held) >= n {
					if !errors.Is(err, slots.ErrFull) {
						rt.Fatalf("%v with %v held of %d", err, held, n)
					}
					return
				}
				if err != nil {
					rt.Fatalf("%v with %v held of %d", err, held, n)
				}
				s := h.Slots()[0]
				at := fmt.Sprint(s.Key, s.Number)
				if held[s.Number] || s.Number < 0 || s.Number >= n || s.Token <= last[at] || s.Key != key {
					rt.Fatalf("%+v with %v held of %d, after token %d", s, held, n, last[at])
				}
				last[at] = s.Token
				holds = append(holds, &modelHold{h: h, by: by, key: key, number: s.Number, until: now.Add(ttl)})
			},
			"release": func(rt *rapid.T) {
				if len(holds) == 0 {
					rt.Skip()
				}
				m := holds[rapid.IntRange(0, len(holds)-1).Draw(rt, "hold")]
				if err := m.h.Release(t.Context()); err != nil {
					rt.Fatal(err)
				}
				m.released = true
			},
			"renew": func(rt *rapid.T) {
				by := rapid.IntRange(0, len(all)-1).Draw(rt, "process")
				if err := slots.Renew(t.Context(), all[by]); err != nil {
					rt.Fatal(err)
				}
				for _, m := range holds {
					if m.by != by || m.released || m.lost {
						continue
					}
					if m.until.After(now) {
						m.until = now.Add(ttl)
					} else {
						m.lost = true
					}
				}
			},
			"time": func(rt *rapid.T) {
				d := rapid.SampledFrom([]time.Duration{time.Microsecond, ttl / 3,
					ttl - time.Microsecond, ttl, 2 * ttl}).Draw(rt, "d")
				mu.Lock()
				now = now.Add(d)
				mu.Unlock()
			},
			"": func(rt *rapid.T) {
				for _, key := range []string{"a", "b"} {
					if n, err := all[0].Held(t.Context(), limit.For(key)); err != nil || n != len(live(key)) {
						rt.Fatalf("%d held of %s, %v; want %v", n, key, err, live(key))
					}
				}
				for _, m := range holds {
					err := m.h.Err()
					if m.lost != errors.Is(err, slots.ErrLost) ||
						!m.lost && m.released != errors.Is(err, slots.ErrReleased) {
						rt.Fatalf("%+v: %v", m, err)
					}
				}
			},
		})
		for _, m := range holds {
			if err := m.h.Release(t.Context()); err != nil {
				rt.Fatal(err)
			}
		}
	})
}
