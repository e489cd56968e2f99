package citus

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

// takenFor is how many tokens callers get in a while: each takes one after the other. On a slow
// machine they go on until they have more than so many, for up to a minute.
func takenFor(
	t *testing.T, d time.Duration, more int64, callers []func(context.Context) (ratelimit.Result, error),
) (float64, time.Duration) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var group sync.WaitGroup
	var failed atomic.Bool
	var taken atomic.Int64
	goesOn := func() bool {
		past := time.Since(began)
		return !failed.Load() && (past < d || taken.Load() <= more && past < time.Minute)
	}
	for _, take := range callers {
		group.Go(func() {
			for goesOn() {
				res, err := take(ctx)
				if err != nil {
					t.Error(err)
					failed.Store(true)
					return
				}
				if res.OK {
					taken.Add(1)
				}
				time.Sleep(time.Millisecond) // leave the machine something
			}
		})
	}
	group.Wait()
	return float64(taken.Load()), time.Since(began)
}

// Callers that are connected to one node get what a limit has, and not a token more, while others
// prune: whatever the clocks of the nodes that have the rows.
func TestWorkersWhoseClocksDifferMintNothing(t *testing.T) {
	nodes := skewed(t)
	pool := nodes[0].pool
	const capacity, rate = 8, 16
	rule := ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(capacity)}
	limit := ratelimit.MustDefine("limit", rule)
	sharded := ratelimit.MustDefine("sharded", rule, ratelimit.Shards(4))
	spread := ratelimit.MustDefine("spread", rule, ratelimit.Shards(4))
	keys := keysOn(t, nodes, "key")
	for _, q := range []ratelimit.Request{limit.For(keys[0]), limit.For(keys[1]), sharded.For(keys[0]),
		sharded.For(keys[1]), spread.Global()} {
		l := limiter(t, ratelimit.Config{Citus: true})
		var callers []func(context.Context) (ratelimit.Result, error)
		for _, r := range roads(t, l, pool) {
			callers = append(callers, func(ctx context.Context) (res ratelimit.Result, err error) {
				err = r.call(ctx, func(v ratelimit.Verbs) (err error) {
					res, err = v.RateLimit(ctx, q)
					return err
				})
				return res, err
			})
		}
		callers = append(callers, func(ctx context.Context) (ratelimit.Result, error) {
			_, err := l.Prune(ctx, pool, ratelimit.PruneConfig{Share: 1})
			return ratelimit.Result{}, err
		})
		taken, d := takenFor(t, 2*time.Second, capacity, callers)
		t.Logf("%s: %v tokens in %v", q, taken, d)
		if taken <= capacity || taken > capacity+rate*d.Seconds() {
			t.Errorf("%s: %v tokens were taken in %v", q, taken, d)
		}
	}
}

// If programs connect to nodes whose clocks differ, they gain what flows in during the difference,
// once; with leases, too. The tokens of slots grow.
func TestProgramsOnNodesWhoseClocksDifferGainTheDifferenceOnce(t *testing.T) {
	nodes := skewed(t)
	const capacity, rate = 20, 40
	rule := ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(capacity)}
	limit := ratelimit.MustDefine("limit", rule)
	for _, leased := range []bool{false, true} {
		for _, key := range keysOn(t, nodes, fmt.Sprint("leased ", leased)) {
			var callers []func(context.Context) (ratelimit.Result, error)
			for _, n := range nodes {
				l := limiter(t, ratelimit.Config{Citus: true})
				take := func(ctx context.Context) (ratelimit.Result, error) {
					return l.Autocommit(n.pool).RateLimit(ctx, limit.For(key))
				}
				if leased {
					lease, err := l.Lease(n.pool, limit.For(key), ratelimit.LeaseConfig{})
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = lease.Close(context.WithoutCancel(t.Context())) }()
					take = func(ctx context.Context) (ratelimit.Result, error) { return lease.Take(ctx, 1) }
				}
				callers = append(callers, take, take)
			}
			taken, d := takenFor(t, 3*time.Second, capacity, callers)
			most := capacity + rate*(d+2*skew).Seconds()
			t.Logf("%s: %v tokens in %v, at most %v", key, taken, d, most)
			if taken <= capacity || taken > math.Ceil(most) {
				t.Errorf("%s: %v tokens were taken in %v, at most %v may be", key, taken, d, most)
			}
		}
	}

	var programs []*slots.Slots
	for _, n := range nodes {
		s, err := slots.New(n.pool, slots.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close(context.WithoutCancel(t.Context())) }()
		programs = append(programs, s)
	}
	slot := slots.MustDefine("slot", 1)
	for _, key := range keysOn(t, nodes, "slot") {
		last := int64(0)
		for i := range 12 {
			hold, err := programs[i%len(programs)].TryAcquire(t.Context(), slot.For(key))
			if err != nil {
				t.Fatal(err)
			}
			token := hold.Slots()[0].Token
			if token <= last {
				t.Errorf("the token %d comes after %d", token, last)
			}
			last = token
			if err := hold.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
