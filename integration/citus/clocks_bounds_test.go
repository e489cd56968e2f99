package citus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

// pause is a pause of a limit, as its rows have it.
type pause struct {
	what        string
	of          ratelimit.Request
	exact       bool      // the limit has no shards
	first, last time.Time // when the pause of one row ends, and when that of all rows has ended
}

// pauses pauses a limit from a node.
func pauses(t *testing.T, by *node, l *ratelimit.Limiter, what string, q ratelimit.Request, d time.Duration) pause {
	t.Helper()
	began := by.now()
	if err := l.Autocommit(by.pool).Pause(t.Context(), d, q); err != nil {
		t.Fatal(err)
	}
	ended := by.now()
	// The rows of a limit without keys are stored under keys of their own.
	const ends = `SELECT min(paused_until), max(paused_until) FROM weir_balance
		WHERE name = $1::text AND ($2::text = '' OR key = $2::text) AND shard >= 0 AND value > '-Infinity'`
	p := pause{what: fmt.Sprint(what, ", ", q), of: q}
	if err := by.pool.QueryRow(t.Context(), ends, q.Limit().Name(), q.Key()).Scan(&p.first, &p.last); err != nil {
		t.Fatalf("%s: %v", p.what, err)
	}
	during(t, p.what, p.first.Add(-d), began, ended)
	during(t, p.what, p.last.Add(-d), began, ended)
	return p
}

// A pause begins by the clock of the node that its caller is connected to, and ends by the clock of the
// node that a taker is connected to: early or late by as much as the two differ, and not by more. All
// nodes return the same RetryAt.
func TestAPauseWhereClocksDifferEndsByTheClockOfTheNodeConnectedTo(t *testing.T) {
	nodes := skewed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	rule := ratelimit.TokenBucket{Rate: 1000, Period: time.Second} // there are tokens at any time
	limit, sharded := ratelimit.MustDefine("limit", rule), ratelimit.MustDefine("sharded", rule, ratelimit.Shards(4))
	// Each is asked for by one node only: a take that is granted ends the pause of its row for all.
	asks := map[*node][]pause{}
	for _, by := range nodes {
		l := limiter(t, ratelimit.Config{Citus: true})
		for _, from := range nodes {
			what := fmt.Sprint("by ", by.name, " for ", from.name)
			keys := keysOn(t, nodes, what)
			spread := ratelimit.MustDefine("spread "+what, rule, ratelimit.Shards(4))
			requests := []ratelimit.Request{limit.For(keys[0]), limit.For(keys[1]), sharded.For(keys[0]), spread.Global()}
			for i, q := range requests {
				p := pauses(t, by, l, what, q, 20*time.Second)
				p.exact = i < 2
				asks[from] = append(asks[from], p)
			}
		}
	}
	var callers sync.WaitGroup
	var denied atomic.Int64
	for _, from := range nodes {
		take := limiter(t, ratelimit.Config{Citus: true}).Autocommit(from.pool)
		callers.Go(func() {
			for paused := asks[from]; len(paused) > 0; time.Sleep(20 * time.Millisecond) {
				paused = slices.DeleteFunc(paused, func(p pause) (over bool) {
					began := from.now()
					res, err := take.RateLimit(ctx, p.of)
					ended := from.now()
					switch {
					case err != nil:
						t.Errorf("%s: %v", p.what, err)
						return true
					case res.OK && ended.Before(p.first):
						t.Errorf("%s: granted %v before the pause has ended", p.what, p.first.Sub(ended))
					case res.OK:
					case !began.Before(p.last):
						t.Errorf("%s: denied %v after the pause has ended", p.what, began.Sub(p.last))
						return true
					case p.exact && !res.RetryAt.Equal(p.first), res.RetryAt.Before(p.first.Add(-time.Microsecond)):
						t.Errorf("%s: RetryAt is %v, and the pause ends at %v", p.what, res.RetryAt, p.first)
						return true
					default:
						denied.Add(1)
					}
					return res.OK
				})
			}
		})
	}
	callers.Wait()
	t.Logf("%d calls were denied", denied.Load())
	if denied.Load() == 0 {
		t.Error("no call was denied: the test should see some")
	}
}

// lapsing takes a slot and never renews it again. It returns until when the slot is held, by the
// clock of the node.
func lapsing(t *testing.T, on *node, limit slots.Limit, key string, ttl time.Duration) (*slots.Hold, time.Time) {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), on.pool.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, slots.Config{TTL: ttl})
	began := on.now()
	hold, err := s.TryAcquire(t.Context(), limit.For(key))
	if err != nil {
		t.Fatal(err)
	}
	pool.Close() // it waits for a renewal that is under way, and none comes after it
	ended := on.now()
	end := heldUntil(t, on, key)
	during(t, "the slot "+key, end.Add(-ttl), began, ended)
	return hold, end
}

// heldUntil is until when the slot of a key is held, if it is not renewed.
func heldUntil(t *testing.T, on *node, key string) time.Time {
	t.Helper()
	return scan[time.Time](t, on.pool, `SELECT until FROM weir_slot WHERE name = 'one' AND key = $1`, key)
}

// A slot is renewed by the clock of the node that its holder is connected to, whatever the clock of the
// worker that has its row shows.
func TestASlotWhereClocksDifferIsRenewedByTheClockOfTheNodeConnectedTo(t *testing.T) {
	nodes := skewed(t)
	const ttl = 6 * time.Second
	one := slots.MustDefine("one", 1)
	for _, from := range nodes {
		s := open(t, from.pool, slots.Config{TTL: ttl})
		for _, key := range keysOn(t, nodes, from.name) {
			began := from.now()
			if _, err := s.TryAcquire(t.Context(), one.For(key)); err != nil {
				t.Fatal(err)
			}
			first := heldUntil(t, from, key)
			end := first
			until(t, "the slot is renewed", func() bool {
				end = heldUntil(t, from, key)
				return !end.Equal(first)
			})
			during(t, fmt.Sprint("the slot ", key), end.Add(-ttl), began, from.now())
		}
	}
}

// A slot that is not renewed any more is given away by the clock of the node that the next holder is
// connected to: early or late by as much as that differs from the clock of the holder's node, and not
// by more.
func TestASlotWhereClocksDifferIsGivenAwayByTheClockOfTheNodeConnectedTo(t *testing.T) {
	nodes := skewed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	one := slots.MustDefine("one", 1)
	var callers sync.WaitGroup
	defer callers.Wait()
	var full atomic.Int64
	for _, from := range nodes {
		next := open(t, from.pool, slots.Config{})
		for _, by := range nodes {
			for _, key := range keysOn(t, nodes, fmt.Sprint("by ", by.name, " for ", from.name)) {
				hold, end := lapsing(t, by, one, key, 10*time.Second)
				callers.Go(func() {
					for ; ; time.Sleep(200 * time.Millisecond) {
						began := from.now()
						got, err := next.TryAcquire(ctx, one.For(key))
						ended := from.now()
						switch {
						case errors.Is(err, slots.ErrFull) && began.Before(end):
							full.Add(1)
							continue
						case err != nil:
							t.Errorf("%s: %v, %v after its TTL", key, err, began.Sub(end))
							return
						case ended.Before(end):
							t.Errorf("%s: given away %v before its TTL", key, end.Sub(ended))
						}
						if was, is := hold.Slots()[0].Token, got.Slots()[0].Token; is <= was {
							t.Errorf("%s: the token %d comes after %d", key, is, was)
						}
						if err := got.Release(ctx); err != nil {
							t.Errorf("%s: %v", key, err)
						}
						return
					}
				})
			}
		}
	}
	callers.Wait()
	t.Logf("%d calls found a slot held", full.Load())
	if full.Load() == 0 {
		t.Error("no call found a slot held: the test should see some")
	}
}

// If the clocks of two nodes differ by less than a tenth of the TTL, no process holds a slot that
// another one has: a slot that cannot be renewed is lost before it is given away, and one that is
// renewed is not given away.
func TestASlotWhereClocksDifferByLessThanATenthOfItsTTLIsLostBeforeItIsGivenAway(t *testing.T) {
	nodes := skewed(t)
	ahead, behind := nodes[1], nodes[2]
	const ttl = 60 * time.Second
	if ahead.ahead-behind.ahead >= ttl/10 {
		t.Fatalf("the clocks differ by %v", ahead.ahead-behind.ahead)
	}
	one := slots.MustDefine("one", 1)
	holder, other := open(t, behind.pool, slots.Config{TTL: ttl}), open(t, ahead.pool, slots.Config{})
	kept, lapsed := map[string]*slots.Hold{}, map[string]*slots.Hold{}
	for _, key := range keysOn(t, nodes, "kept") {
		var err error
		if kept[key], err = holder.TryAcquire(t.Context(), one.For(key)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keysOn(t, nodes, "lapsed") {
		lapsed[key], _ = lapsing(t, behind, one, key, ttl)
	}
	until(t, "the slots that are not renewed are given away", func() bool {
		time.Sleep(200 * time.Millisecond) // leave the machine something
		for key, hold := range lapsed {
			_, err := other.TryAcquire(t.Context(), one.For(key))
			told := hold.Err() // afterwards
			switch {
			case errors.Is(err, slots.ErrFull):
				continue
			case err != nil:
				t.Fatalf("%s: %v", key, err)
			case !errors.Is(told, slots.ErrLost):
				t.Errorf("%s: given away, and to its holder it is not lost: %v", key, told)
			}
			delete(lapsed, key)
		}
		for key, hold := range kept {
			if _, err := other.TryAcquire(t.Context(), one.For(key)); !errors.Is(err, slots.ErrFull) {
				t.Fatalf("%s: %v, want ErrFull: it is renewed", key, err)
			}
			if err := hold.Err(); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		return len(lapsed) == 0
	})
	for key, hold := range kept {
		if err := hold.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := other.TryAcquire(t.Context(), one.For(key)); err != nil {
			t.Errorf("%s: %v, after it was released", key, err)
		}
	}
}
