package ratelimit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// Request is what one call asks of one limit: how many tokens, of which key, by which rule, now or
// reserved. It is a value: its methods return changed copies, so use what they return. A bare
// [Limit] is no Request, so a forgotten key does not compile.
type Request struct {
	def     *definition
	key     string
	keyed   bool // made by For
	count   float64
	reserve bool
	bounded bool // by within
	within  time.Duration
	credit  bool
	leave   float64
	rule    Rule
}

// Limit returns the request's limit. Two requests are equal, with ==, if they ask for the same of
// the same key, unless they have rules of their own.
func (r Request) Limit() Limit { return Limit{r.def} }

// Key returns the key whose tokens are asked for; "" for those of a limit without keys.
func (r Request) Key() string { return r.key }

// N returns how many tokens are asked for.
func (r Request) N() float64 { return r.count }

// Reserves tells whether the request may be granted for later than now: with OrReserve, or with
// Within and more than 0.
func (r Request) Reserves() bool { return r.reserve && (!r.bounded || r.within > 0) }

// String describes the request, for messages: 1200 of chatTokens for "acme", OrReserve.
func (r Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v of %s", r.count, cmp.Or(r.Limit().Name(), "the zero Limit"))
	if r.keyed {
		fmt.Fprintf(&b, " for %q", where.Short(r.key))
	}
	switch {
	case r.bounded:
		fmt.Fprintf(&b, ", Within %v", r.within)
	case r.reserve:
		b.WriteString(", OrReserve")
	}
	if r.credit {
		b.WriteString(", OnCredit")
	}
	if r.leave != 0 {
		fmt.Fprintf(&b, ", Leave %v", r.leave)
	}
	if r.rule != nil {
		b.WriteString(", by a rule of its own")
	}
	return b.String()
}

// Count asks for n tokens instead of one. Fractions are allowed, and so is 0, which is granted
// while nothing is owed and the limit is not paused. A count below 0, NaN, or one that the limit
// could never grant (above its capacity; with OrReserve above capacity plus MaxReserved) is refused
// when the request is used.
func (r Request) Count(n float64) Request { r.count = n; return r }

// CountInt is [Request.Count] of an integer, such as the tokens that the answer of a model reports.
func (r Request) CountInt(n int64) Request { return r.Count(float64(n)) }

// OrReserve asks to be granted for later if the tokens do not exist yet. They are then owed: the
// balance goes below zero, at most by the rule's MaxReserved, and [Result.RunAt] says when the debt
// is repaid and the work may run. Do not run it before. Later callers queue behind it.
func (r Request) OrReserve() Request { r.reserve = true; return r }

// Within is OrReserve for work that cannot wait for long. It is granted only if the work may run
// within d of the decision, so that [Result.RunAt] is no later than [Result.At] plus d. Otherwise
// nothing is taken, and RetryAt is the first instant at which the same call would be granted if
// nobody else came. MaxReserved holds too.
//
// With 0 only work that may run now is granted, as without OrReserve. A d below 0, or a count that
// does not flow in within d even if the limit is full, is refused when the request is used. For a
// fixed window that is a count above the capacity plus what the windows add that begin within d.
// Fractions of a microsecond do not count.
func (r Request) Within(d time.Duration) Request {
	r.reserve, r.bounded, r.within = true, true, d
	return r
}

// OnCredit asks to be granted as soon as nothing is owed, whatever the count. Tokens that are
// missing are owed, and the next callers wait until they are repaid. Guava's RateLimiter works like
// that: the number of permits delays the next request and not the request itself. Use it for costs
// that are large, or known only after the work (see [Limiter.Settle]). A call with a large count
// may exceed the limit, by up to its count in any interval.
//
// Alone it is granted if nothing is owed and the limit is not paused, and runs now. A count above
// the capacity is refused, and MaxReserved does not matter. With OrReserve or Within it may wait
// for debts of earlier callers, though not for its own tokens. RunAt is when those debts are
// repaid. MaxReserved bounds those debts, and Within bounds the wait. So the whole debt may exceed
// MaxReserved by the count.
func (r Request) OnCredit() Request { r.credit = true; return r }

// Leave asks to be granted only if n tokens are left after it. Use it for less important traffic:
// when the limit runs short, the last n tokens are for calls without Leave.
//
//	AllTokens.Global().Count(n)              // critical
//	AllTokens.Global().Count(n).Leave(2_000) // all else
//
// While there are enough tokens, all calls may use everything that flows in. Leave together with
// OrReserve, Within or OnCredit is refused when the request is used, as those leave nothing. So is
// an n below 0, or above the capacity minus the count. For a limit with shards, each call first
// reads all of them. It also leaves each shard its part of n.
func (r Request) Leave(n float64) Request { r.leave = n; return r }

// Rule uses another rule for this request than the limit's own, for example a customer's plan. The
// row is the same whatever the rule, so a change of plan does not reset what was used. A rule with
// a smaller capacity lowers the balance to it when it takes, also in a call that another limit then
// denies. Nil means the limit's own rule.
func (r Request) Rule(rule Rule) Request { r.rule = rule; return r }

// call is a request that was checked, and the row that it is for.
type call struct {
	algebra.Ask
	where.Row
	indexes []int // the positions of the requests that were merged into it

	args *ruleArgs // the algebra as arguments; nil if they were not made yet

	ruled  bool // by a rule of the request's own
	shadow bool // it never denies
	never  bool // a shadow that would never grant

	settle  int64  // how many microseconds after it may run it can be settled; 0: settleWithin
	watched uint64 // denials.changes + 1 when denials.watch saw the call, or 0

	shards int // how many the limit should have; 0 for a call for a single row
}

func errNoLimit() error {
	return &InvalidError{Field: "limit", Value: plain("the zero Limit"),
		Want: "one made by Define or MustDefine"}
}

func (r Request) errWithin() error {
	return &InvalidError{Limit: r.def.name, Field: "Within", Value: r.within, Want: "0 or more"}
}

func (r Request) resolve() (call, error) {
	if r.def == nil {
		return call{}, errNoLimit()
	}
	name := r.def.name
	c := call{Ask: algebra.Ask{Rule: r.def.rule, Count: r.count, Ahead: algebra.Ahead{
		Reserve: r.reserve, Credit: r.credit, Leave: r.leave,
	}}, Row: where.Of(name, r.key, alone), shards: r.def.shards, args: r.def.args,
		shadow: r.def.shadow, settle: r.def.settle.Microseconds()}

	if r.rule != nil {
		a, err := compileRule(name, r.rule)
		if err != nil {
			return c, err
		}
		c.Rule, c.args, c.ruled = a, nil, true
	}
	if r.keyed {
		if err := badKey(name, r.key); err != nil {
			return c, err
		}
	}
	if r.bounded {
		if r.within < 0 {
			return c, r.errWithin()
		}
		c.Bounded, c.Within = true, r.within.Microseconds()
	}
	if c.Leave != 0 && (c.Reserve || c.Credit) {
		return c, &InvalidError{Limit: name, Field: "Leave", Value: r.leave,
			Want: "no Leave with OrReserve, Within or OnCredit"}
	}
	if c.Credit && !c.Reserve {
		c.Reserve, c.Bounded = true, true
	}
	if c.Phased {
		c.SetOrigin(phase(name, r.key, c.Period))
	}
	return c, c.inShadow(c.checkCount())
}

func badKey(limit, key string) error {
	why := where.Unfit(key, MaxKeyBytes)
	if key == "" {
		why = "it is empty; Limit.Global is for limits without keys"
	}
	if why == "" && strings.HasPrefix(key, shard.Reserved) {
		why = "it begins with the prefix that Weir reserves for shards"
	}
	if why == "" {
		return nil
	}
	return &InvalidError{Limit: limit, Field: "key", Value: where.Short(key),
		Want: "1 to 1024 bytes of UTF-8 without NUL: " + why}
}

func (c *call) checkCount() error {
	n, waits := c.Count, c.Count // waits is how many tokens must come before the work may run
	if c.Credit {
		n, waits = max(c.Before, c.Count-c.Before), c.Before
	}
	switch {
	case !(n >= 0 && c.Count >= 0):
		return &InvalidError{Limit: c.Name, Field: "count", Value: c.Count,
			Want: "0 or more tokens"}
	case c.Pausable() && !(c.Capacity-n >= -c.Debt):
		return &InvalidError{Limit: c.Name, Field: "count", Value: n, never: true,
			Want: fmt.Sprintf("at most %v: the capacity of %v plus the MaxReserved of %v",
				c.Capacity+c.Debt, c.Capacity, c.Debt)}
	case !c.Pausable() && n > c.Capacity:
		return &InvalidError{Limit: c.Name, Field: "count", Value: n, never: true,
			Want: fmt.Sprintf("at most the capacity of %v, or OrReserve", c.Capacity)}
	case c.Leave != 0 && !(c.Leave > 0 && c.Capacity-n >= c.Leave):
		return &InvalidError{Limit: c.Name, Field: "Leave", Value: c.Leave, never: true,
			Want: fmt.Sprintf("0 to %v: the capacity minus the count of %v", c.Capacity-n, n)}
	case c.Within > 0 && !(c.Capacity-waits >= -c.Always(c.Within)):
		return &InvalidError{Limit: c.Name, Field: "count", Value: waits,
			never: c.shadow || !(c.Capacity-waits >= -c.Comes(c.Within)),
			Want: fmt.Sprintf("at most %v: the capacity of %v plus what flows in within any %v, or a longer Within",
				c.Capacity+c.Always(c.Within), c.Capacity,
				time.Duration(c.Within)*time.Microsecond)}
	case n > 0 && n < c.Capacity*algebra.Smallest:
		return &InvalidError{Limit: c.Name, Field: "count", Value: n,
			Want: fmt.Sprintf("0, or at least a 2^40th of the capacity of %v: less would be lost in rounding",
				c.Capacity)}
	}
	return nil
}

// only is the indexes of a call with one request, shared to save an allocation. It must not be
// written to.
var only = []int{0}

// resolveAll checks the requests of one call, merges those for the same row, and sorts them by row.
// Every call locks its rows in this order, so calls cannot deadlock.
func resolveAll(requests []Request) ([]call, error) {
	if len(requests) == 1 {
		c, err := requests[0].resolve()
		if err != nil {
			return nil, err
		}
		c.indexes = only
		return []call{c}, nil
	}
	if len(requests) == 0 {
		return nil, &InvalidError{Field: "requests", Value: plain("none"), Want: "at least one"}
	}
	return merge(requests, nil)
}

// merge is resolveAll for two or more requests. For a batch, of[i] is the number of the call that
// request i belongs to.
func merge(requests []Request, of []int) ([]call, error) {
	calls := make([]call, 0, len(requests))
	for i, r := range requests {
		c, err := r.resolve()
		if err != nil {
			return nil, err
		}
		c.indexes = []int{i}
		calls = append(calls, c)
	}
	sortCalls(calls)
	merged := calls[:1]
	for _, c := range calls[1:] {
		last := &merged[len(merged)-1]
		if c.Row != last.Row {
			merged = append(merged, c)
			continue
		}
		switch {
		case c.Rule != last.Rule:
			return nil, errUnlike(&c, "the same rule in both")
		case c.Reserve != last.Reserve:
			return nil, errUnlike(&c, "OrReserve in both or in none")
		case c.Bounded != last.Bounded || c.Within != last.Within:
			return nil, errUnlike(&c, "the same Within in both")
		case c.Credit != last.Credit:
			return nil, errUnlike(&c, "OnCredit in both or in none")
		case c.Leave != last.Leave:
			return nil, errUnlike(&c, "the same Leave in both")
		case of != nil && of[c.indexes[0]] != of[last.indexes[len(last.indexes)-1]]:
			last.Before = last.Count
		}
		last.Count += c.Count
		last.indexes = append(last.indexes, c.indexes...)
		if err := last.inShadow(last.checkCount()); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

func errUnlike(c *call, want string) error {
	return &InvalidError{Limit: c.Name, Field: "requests",
		Value: plain(fmt.Sprintf("two of them, for key %q", where.Short(c.Key))), Want: want}
}

// bare returns the requests without counts and options, for verbs that ignore them.
func bare(requests []Request) []Request {
	b := slices.Clone(requests)
	for i := range b {
		b[i].count, b[i].reserve, b[i].bounded, b[i].credit, b[i].leave = 0, false, false, false, 0
	}
	return b
}

func sortCalls(calls []call) {
	slices.SortStableFunc(calls, func(a, b call) int { return a.Compare(&b.Row) })
}
