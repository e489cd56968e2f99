package model

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
)

// balance is what a history is about.
type balance struct {
	rule  ratelimit.Rule
	limit ratelimit.Limit
	key   string
}

type balances []balance

func (b balances) request(i int) ratelimit.Request { return b[i].limit.For(b[i].key) }

// mix is what callers do.
type mix struct {
	balances  balances
	clients   int
	calls     int  // transactions of each client
	several   bool // a call may be about several balances, and a transaction about different ones
	single    bool // one call a transaction
	noGivings bool
	now       bool      // nothing is reserved
	sharded   []balance // the shards of the only balance, each of which is one by itself; nil: it has none
	counts    []float64
}

// caller is one of the concurrent clients.
type caller struct {
	m       mix
	h       *history
	road    road
	id      int
	rand    *rand.Rand
	granted []grant // and not yet given back
}

// grant is a call that was granted.
type grant struct {
	res   ratelimit.Result
	gives []part // what giving it back does
}

// locks are the rows that a transaction has locked. All take theirs in one order, so that no two
// wait for each other.
type locks struct {
	held    map[int]bool
	highest int // that may be locked: a denial that was expected locks nothing
}

func (l *locks) add(parts []part) {
	for _, p := range parts {
		if p.verb != checking {
			l.held[p.balance] = p.verb != taking || p.result.OK || l.held[p.balance]
			l.highest = max(l.highest, p.balance)
		}
	}
}

// act makes one call and returns what it did with each balance.
func (c *caller) act(ctx context.Context, o operations, among []int, locked *locks, granted *[]grant) ([]part, error) {
	free := slices.DeleteFunc(slices.Clone(among), func(i int) bool { return i < locked.highest && !locked.held[i] })
	n := c.rand.IntN(100)
	if n < 20 && !c.m.noGivings {
		fits := func(g grant) bool {
			return !slices.ContainsFunc(g.gives, func(p part) bool { return !slices.Contains(free, p.balance) })
		}
		if i := slices.IndexFunc(*granted, fits); i >= 0 {
			g := (*granted)[i]
			*granted = slices.Delete(*granted, i, i+1)
			return g.gives, o.GiveBack(ctx, g.res)
		}
	}
	if n >= 20 && n < 25 {
		i := free[c.rand.IntN(len(free))]
		return []part{{verb: resetting, balance: i}}, o.ResetRateLimit(ctx, c.m.balances.request(i))
	}
	verb, do := taking, o.RateLimit
	if n >= 25 && n < 45 {
		verb, do, free = checking, o.CheckRateLimit, among
	}

	chosen := []int{free[c.rand.IntN(len(free))]}
	if c.m.several && c.rand.IntN(2) == 0 {
		chosen = c.rand.Perm(len(free))[:1+c.rand.IntN(len(free))]
		for i := range chosen {
			chosen[i] = free[chosen[i]]
		}
	}
	requests, counts := make([]ratelimit.Request, len(chosen)), make([]float64, len(chosen))
	for i, b := range chosen {
		counts[i] = c.m.counts[c.rand.IntN(len(c.m.counts))]
		requests[i] = c.m.balances.request(b).Count(counts[i])
		if !c.m.now && c.rand.IntN(5) == 0 {
			requests[i] = requests[i].OrReserve()
		}
	}
	res, err := do(ctx, requests...)
	if err != nil {
		return nil, err
	}
	parts := make([]part, len(chosen))
	g := grant{res: res}
	for i, b := range chosen {
		p := answered(verb, c.m.balances, b, requests[i], res, i)
		p.exact = !c.m.several
		since := res.At
		if verb == taking && res.OK && c.m.sharded == nil {
			p.told, since = toldOf(res, p.outcome)
		}
		parts[i] = p
		g.gives = append(g.gives, part{verb: givingBack, balance: b, Numbers: p.Numbers,
			result: res, count: counts[i], told: p.told,
			start: rig.WindowEnd(p.Numbers, requests[i], since).Add(-p.Period)})
	}
	if verb == taking && res.OK {
		*granted = append(*granted, g)
	}
	return parts, nil
}

// answered is the part that the i-th request of a call, which is about balance b, had in its
// result.
func answered(v verb, among balances, b int, r ratelimit.Request, res ratelimit.Result, i int) part {
	return part{verb: v, balance: b, Numbers: rig.NumbersOf(among[b].rule), request: r, result: res,
		outcome: res.Outcomes[i]}
}

// toldOf is what the reservation of a granted call has written down of one of its limits and keys:
// that is the JSON of a take.
func toldOf(res ratelimit.Result, o ratelimit.Outcome) (t told, since time.Time) {
	for _, take := range res.Reservation().Takes {
		if take.Limit != o.Limit || take.Key != o.Key {
			continue
		}
		text, err := json.Marshal(take)
		if err != nil {
			panic(err)
		}
		var a []any
		if err := json.Unmarshal(text, &a); err != nil {
			panic(err)
		}
		return told{true, a[5].(float64), a[6].(float64)}, time.UnixMicro(int64(a[4].(float64)))
	}
	return told{}, res.At
}

// ofShards are the parts that a part of a limit with shards has in each of them. A denial and a
// check have none: they tell of all shards together.
func (m *mix) ofShards(p part) (all []part) {
	if m.sharded == nil {
		return []part{p}
	}
	if p.verb == resetting {
		for i := range m.sharded {
			all = append(all, part{verb: resetting, balance: i})
		}
	}
	if p.verb == checking || p.verb == resetting || !p.result.OK {
		return all
	}
	for _, take := range p.result.Reservation().Takes {
		text, err := json.Marshal(take)
		if err != nil {
			panic(err)
		}
		var a []any
		if err := json.Unmarshal(text, &a); err != nil {
			panic(err)
		}
		_, i := shard.Address(int32(a[3].(float64)))
		count := take.Count
		if count < rig.Tolerance { // less than a count can be, which a balance that was gathered had left
			count = 0
		}
		n, since := rig.NumbersOf(m.sharded[i].rule), time.UnixMicro(int64(a[4].(float64)))
		q := part{
			verb: p.verb, balance: i, Numbers: n, count: count, told: told{true, a[5].(float64), a[6].(float64)},
			request: m.sharded[i].limit.Global().Count(count).OrReserve(),
			result:  ratelimit.Result{OK: true, At: since},
			outcome: ratelimit.Outcome{OK: true, Value: -a[5].(float64)}, exact: true,
		}
		if take.Ahead() {
			q.outcome.RunAt, _ = take.RunAt(ratelimit.State{})
		}
		q.start = rig.WindowEnd(n, q.request, since).Add(-n.Period)
		all = append(all, q)
	}
	return all
}

var errUndo = errors.New("undo")

// transaction makes some calls in one transaction and records them if it commits.
func (c *caller) transaction(ctx context.Context, run runner) error {
	all := make([]int, len(c.m.balances))
	for i := range all {
		all[i] = i
	}
	calls := 1 + c.rand.IntN(3)
	if c.m.single || c.road.level == "" {
		calls = 1
	}
	among := all
	if !c.m.several {
		i := c.rand.IntN(len(all))
		among = all[i : i+1]
	}
	old, undo := c.rand.IntN(4) == 0, c.road.level != "" && c.rand.IntN(10) == 0

	var began int64
	var parts [][]part
	var starts []int64
	var granted []grant
	err := run(ctx, func(o operations) error {
		began, parts, starts = c.h.now(), nil, nil // this may be another attempt
		granted = slices.Clone(c.granted)
		locked := locks{held: map[int]bool{}}
		if p, ok := o.(pgxOperations); ok && old {
			if _, err := p.tx.Exec(ctx, `SELECT 1`); err != nil { // takes the snapshot
				return err
			}
			time.Sleep(time.Duration(c.rand.IntN(2000)) * time.Microsecond)
		}
		for range calls {
			start := c.h.now()
			did, err := c.act(ctx, o, among, &locked, &granted)
			if err != nil {
				return err
			}
			locked.add(did)
			parts, starts = append(parts, did), append(starts, start)
		}
		if undo {
			return errUndo
		}
		return nil
	})
	switch {
	case errors.Is(err, errUndo):
		return nil
	case err != nil:
		return err
	}
	c.granted = granted

	// Above READ COMMITTED a transaction happens at once, be it about one balance or, at
	// SERIALIZABLE, about several. At REPEATABLE READ that is still so if all it does is one call,
	// or on one row. At READ COMMITTED each call sees for itself. On Citus each node does: what a
	// transaction does on several nodes does not happen at once.
	if c.atOnce() {
		// A lone denial that was expected was read without a transaction, as at READ COMMITTED:
		// right in itself, but other transactions need not fall into one order around it.
		if c.m.several && !old && len(parts) == 1 && parts[0][0].verb == taking && !parts[0][0].result.OK {
			return nil
		}
		var all []part
		for _, p := range parts {
			all = append(all, p...)
		}
		c.h.add(c.id, began, all...)
		return nil
	}
	for i := range parts {
		for _, p := range parts[i] {
			if c.road.level == pgx.RepeatableRead || c.road.level == pgx.Serializable {
				starts[i] = began // as old as its snapshot
			}
			for _, q := range c.m.ofShards(p) {
				c.h.add(c.id, starts[i], q)
			}
		}
	}
	return nil
}

func (c *caller) atOnce() bool {
	if c.m.sharded != nil {
		return false
	}
	switch c.road.level {
	case pgx.Serializable:
		return true
	case pgx.RepeatableRead:
		return !c.m.several || c.m.single && !pgtest.Citus()
	}
	return false
}

// record lets the callers loose and returns their history.
func (m mix) record(t testing.TB, r road, run runner) *history {
	t.Helper()
	h := newHistory()
	// Until then InTx runs again: in the portable form nobody queues, and on a slow machine a client may
	// lose to others more often than the default allows.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for id := range m.clients {
		wg.Go(func() {
			c := &caller{m: m, h: h, road: r, id: id, rand: rand.New(rand.NewPCG(rand.Uint64(), 0))}
			for range m.calls {
				if err := c.transaction(ctx, run); err != nil {
					t.Errorf("client %d: %v", id, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return h
}
