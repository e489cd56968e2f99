package slots_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/delay"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// counted makes a pool whose round trips are counted.
func counted(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *delay.Proxy) {
	t.Helper()
	cfg := pool.Config()
	c := cfg.ConnConfig
	p, err := delay.Listen(fmt.Sprintf("%s:%d", c.Host, c.Port), 0)
	if err != nil {
		t.Skip(err)
	}
	if _, err := fmt.Sscanf(p.Addr(), "127.0.0.1:%d", &c.Port); err != nil {
		t.Fatal(err)
	}
	c.Host, c.Fallbacks = "127.0.0.1", nil
	through, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		through.Close()
		_ = p.Close()
	})
	return through, p
}

func TestNeverMoreThanNWorkAtOnceOverManyProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	const processes, workers, rounds = 4, 8, 25
	limits := map[string]slots.Limit{"a": slots.MustDefine("a", 1), "b": slots.MustDefine("b", 3),
		"c": slots.MustDefine("c", 7)}
	var busy sync.Map // of *atomic.Int64
	var most [3]atomic.Int64
	var wg sync.WaitGroup
	for range processes {
		s := open(t, pool, slots.Config{})
		for range workers {
			wg.Go(func() {
				for range rounds {
					name := string(rune('a' + rand.IntN(3)))
					n := map[string]int64{"a": 1, "b": 3, "c": 7}[name]
					err := s.Do(t.Context(), func(ctx context.Context) error {
						v, _ := busy.LoadOrStore(name, new(atomic.Int64))
						now := v.(*atomic.Int64).Add(1)
						defer v.(*atomic.Int64).Add(-1)
						if m := &most[name[0]-'a']; now > m.Load() {
							m.Store(now)
						}
						if now > n {
							t.Errorf("%d at once of %d", now, n)
						}
						if held, err := s.Held(ctx, limits[name].For("k")); err != nil || int64(held) > n || held < 1 {
							t.Errorf("%d held of %d, %v", held, n, err)
						}
						time.Sleep(rand.N(time.Millisecond))
						return nil
					}, limits[name].For("k"))
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	t.Logf("most at once: %d, %d, %d", most[0].Load(), most[1].Load(), most[2].Load())
	if most[1].Load() < 2 || most[2].Load() < 3 {
		t.Error("the slots were not used")
	}
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// While what a larger number has left is still held, those who ask by the smaller one race each
// other, and who gives back.
func TestAShrunkLimitGrantsNothingAboveItsNumberWhoeverRaces(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	const callers = 8
	var all []*slots.Slots
	for range callers {
		all = append(all, open(t, pool, slots.Config{}))
	}
	for round := range 60 {
		key := fmt.Sprint(round)
		var left []*slots.Hold
		for range 6 {
			left = append(left, try(t, all[0], three.For(key).Of(9)))
		}
		// the larger numbers last, so that they are in the way when there is room
		slices.SortFunc(left, func(a, b *slots.Hold) int { return a.Slots()[0].Number - b.Slots()[0].Number })
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				for {
					h, err := s.TryAcquire(t.Context(), three.For(key))
					if errors.Is(err, slots.ErrFull) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if n, err := s.Held(t.Context(), three.For(key)); err != nil || n > 3 {
						t.Errorf("%d held of 3, %v", n, err)
					}
					release(t, h)
					return
				}
			})
		}
		for _, h := range left {
			release(t, h)
		}
		wg.Wait()
	}
}

func TestThoseWhoWaitInAProcessHaveTheirTurnsInOrder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	slots.SetPasses(s, time.Hour)
	one := slots.MustDefine("one", 1)
	h := try(t, s, one.For("k"))
	const waiters = 10
	order := make(chan int, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			next, err := s.Acquire(t.Context(), one.For("k"))
			if err != nil {
				t.Error(err)
				return
			}
			if was, is := h.Slots()[0], next.Slots()[0]; was != is {
				t.Errorf("%+v is not %+v, which was to be passed on", is, was)
			}
			order <- i
			release(t, next)
		})
		until(t, "it waits", func() bool { return slots.Waiting(s, "one", "k") == i+1 })
	}
	if _, err := s.TryAcquire(t.Context(), one.For("k")); !errors.Is(err, slots.ErrFull) {
		t.Errorf("%v, want ErrFull as others wait", err)
	}
	release(t, h)
	wg.Wait()
	for i := range waiters {
		if got := <-order; got != i {
			t.Errorf("turn %d was that of %d", i, got)
		}
	}
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestASlotIsPassedOnForAWhileAndThenGivenBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	one := slots.MustDefine("one", 1)
	for _, test := range []struct {
		name   string
		passes time.Duration
		passed bool
	}{{"within", time.Hour, true}, {"after", time.Nanosecond, false}} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, pool, slots.Config{})
			slots.SetPasses(s, test.passes)
			h := try(t, s, one.For(test.name))
			got := make(chan *slots.Hold)
			go func() {
				h, err := s.Acquire(t.Context(), one.For(test.name))
				if err != nil {
					t.Error(err)
				}
				got <- h
			}()
			until(t, "it waits", func() bool { return slots.Waiting(s, "one", test.name) == 1 })
			release(t, h)
			next := <-got
			if was, is := h.Slots()[0], next.Slots()[0]; (was.Token == is.Token) != test.passed ||
				is.Token < was.Token {
				t.Errorf("%+v and then %+v", was, is)
			}
			if !errors.Is(h.Err(), slots.ErrReleased) || next.Err() != nil {
				t.Error(h.Err(), next.Err())
			}
			release(t, next)
		})
	}
}

// Nobody is left over a slot that was passed on to who is just leaving.
func TestWaitersWhoGiveUpLoseNoSlot(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its waiters give up before a cluster answers")
	pool := pgtest.Pool(t)
	here, there := open(t, pool, slots.Config{}), open(t, pool, slots.Config{})
	two := slots.MustDefine("two", 2)
	var wg sync.WaitGroup
	var worked, gaveUp atomic.Int64
	for i := range 24 {
		s := []*slots.Slots{here, there}[i%2]
		wg.Go(func() {
			for range 20 {
				patience := rand.N(20 * time.Millisecond)
				if rand.N(8) == 0 { // or none would work on a machine on which all takes longer
					patience = time.Minute
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				err := s.Do(ctx, func(context.Context) error {
					worked.Add(1)
					time.Sleep(rand.N(2 * time.Millisecond))
					return nil
				}, two.For("k"))
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					gaveUp.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d worked, %d gave up", worked.Load(), gaveUp.Load())
	if worked.Load() == 0 || gaveUp.Load() == 0 {
		t.Error("want both")
	}
	if n := slots.Waiting(here, "two", "k") + slots.Waiting(there, "two", "k"); n != 0 {
		t.Errorf("%d wait", n)
	}
	// what was under way when its context ended is tidied up, well before TTL
	until(t, "no rows are left", func() bool { return rows(t, pool) == 0 })
}

func TestCallersOfSeveralLimitsNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a, b := slots.MustDefine("a", 1), slots.MustDefine("b", 1)
	var wg sync.WaitGroup
	var working [2]atomic.Int64
	for range 3 {
		s := open(t, pool, slots.Config{})
		for _, requests := range [][]slots.Request{{a.For("k"), b.For("k")},
			{b.For("k"), a.For("k")}, {a.For("k")}, {b.For("k")}} {
			wg.Go(func() {
				for range 5 {
					h, err := s.Acquire(t.Context(), requests...)
					if err != nil {
						t.Error(err)
						return
					}
					for _, sl := range h.Slots() {
						if n := working[sl.Limit[0]-'a'].Add(1); n != 1 {
							t.Errorf("%d at once", n)
						}
					}
					for _, sl := range h.Slots() {
						working[sl.Limit[0]-'a'].Add(-1)
					}
					release(t, h)
				}
			})
		}
	}
	wg.Wait()
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
