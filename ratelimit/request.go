package ratelimit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

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
		fmt.Fprintf(&b, " for %q", shorten(r.key))
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

// call is a request that was found to be good, and the row that it is for.
type call struct {
	algebra
	name, key string
	shard     int32
	count     float64
	ahead
	indexes []int // of the requests that were merged into it
	taken   int64 // once granted: when, by the row's time; 0 if nothing was taken
	delay   int64 // and the row's delay then,
	moved   float64
	owed    float64 // what it owed after the take; below 0, what it had left

	args *ruleArgs // of the algebra; nil if they are not at hand

	ruled  bool // by a rule of the request's own
	shadow bool // it never denies
	never  bool // a shadow that would never grant

	settle  int64  // within how many microseconds it can be settled; 0: settleWithin
	watched uint64 // denials.changes + 1 when denials.watch saw the call, or 0

	shards int     // that the limit is to have; 0 for a call that is for a row alone
	parts  []call  // once granted by several rows, or by a shard: what was taken from each
	after  balance // the row as the take left it; only of a part
	used   float64 // of the count, when it is settled
	most   float64 // that it is to wait for in one shard, if not 0: see books.asked
}

// stamp notes that the call was granted, and left its row with b.
func (c *call) stamp(b balance) {
	c.taken, c.owed, c.delay, c.moved, c.after = b.since(), -b.value, b.delay, b.moved, b
}

// took are the rows that the call has taken from.
func (c *call) took() []call {
	if c.parts != nil {
		return c.parts
	}
	return []call{*c}
}

// ahead is how far ahead of its tokens a call may be granted.
type ahead struct {
	reserve bool
	bounded bool  // by within
	within  int64 // the most microseconds from the decision until it may run
	credit  bool  // it need not wait for its own tokens
	leave   float64
	before  float64 // of the count: what all calls of a batch take but the last. See RateLimitMany.
}

// pausable says that the call may be granted for later, and so in a pause.
func (a *ahead) pausable() bool { return a.reserve && (!a.bounded || a.within > 0) }

// least is the balance that the take must leave. A debt that is deep enough for the count to drown in it, by float64's
// rounding, would be run up for nothing: no count owes more than 2^40 of itself.
func (c *call) least() float64 {
	least := c.floor(c.pausable()) - c.credited() + c.leave
	if n := c.count - c.before; c.reserve && n > 0 {
		least = max(least, -n/smallest)
	}
	return least
}

// credited is how much of the count the callers that come next pay for. In a batch each call waits
// for the calls before it, so it is what the last call takes.
func (c *call) credited() float64 {
	if c.credit {
		return c.count - c.before
	}
	return 0
}

// line is the balance that the take waits for, of that which it has left.
func (c *call) line(b balance) balance {
	b.value += c.credited()
	return b
}

// atOnce says that what was taken did not have to wait for those before it.
func (c *call) atOnce() bool { return c.owed-c.credited() <= 0 }

func errNoLimit() error {
	return &InvalidError{Field: "limit", Value: plain("the zero Limit"), Want: "one made by Define or MustDefine"}
}

func (r Request) resolve() (call, error) {
	if r.def == nil {
		return call{}, errNoLimit()
	}
	name := r.def.name
	c := call{algebra: r.def.rule, name: name, key: r.key, shard: alone, count: r.count, ahead: ahead{reserve: r.reserve, credit: r.credit, leave: r.leave}, shards: r.def.shards, args: r.def.args, shadow: r.def.shadow, settle: r.def.settle.Microseconds()}

	if r.rule != nil {
		a, err := compileRule(name, r.rule)
		if err != nil {
			return c, err
		}
		c.algebra, c.args, c.ruled = a, nil, true
	}
	if r.keyed {
		if err := badKey(name, r.key); err != nil {
			return c, err
		}
	}
	if r.bounded {
		if r.within < 0 {
			return c, &InvalidError{Limit: name, Field: "Within", Value: r.within, Want: "0 or more"}
		}
		c.bounded, c.within = true, r.within.Microseconds()
	}
	if c.leave != 0 && (c.reserve || c.credit) {
		return c, &InvalidError{Limit: name, Field: "Leave", Value: r.leave, Want: "no Leave with OrReserve, Within or OnCredit"}
	}
	if c.credit && !c.reserve {
		c.reserve, c.bounded = true, true
	}
	if c.phased {
		c.setOrigin(phase(name, r.key, c.period))
	}
	return c, c.inShadow(c.checkCount())
}

func badKey(limit, key string) error {
	why := badText(key, MaxKeyBytes)
	if key == "" {
		why = "it is empty; Limit.Global is for limits without keys"
	}
	if why == "" && strings.HasPrefix(key, shard.Reserved) {
		why = "it begins as those that Weir keeps for shards"
	}
	if why == "" {
		return nil
	}
	return &InvalidError{Limit: limit, Field: "key", Value: shorten(key), Want: "1 to 1024 bytes of UTF-8 without NUL: " + why}
}

func (c *call) checkCount() error {
	n, waits := c.count, c.count // waits is how many tokens must come before the work may run
	if c.credit {
		n, waits = max(c.before, c.count-c.before), c.before
	}
	switch {
	case !(n >= 0 && c.count >= 0):
		return &InvalidError{Limit: c.name, Field: "count", Value: c.count, Want: "0 or more tokens"}
	case c.pausable() && !(c.capacity-n >= -c.debt):
		return &InvalidError{Limit: c.name, Field: "count", Value: n, never: true,
			Want: fmt.Sprintf("at most %v: the capacity of %v plus the MaxReserved of %v", c.capacity+c.debt, c.capacity, c.debt)}
	case !c.pausable() && n > c.capacity:
		return &InvalidError{Limit: c.name, Field: "count", Value: n, never: true,
			Want: fmt.Sprintf("at most the capacity of %v, or OrReserve", c.capacity)}
	case c.leave != 0 && !(c.leave > 0 && c.capacity-n >= c.leave):
		return &InvalidError{Limit: c.name, Field: "Leave", Value: c.leave, never: true,
			Want: fmt.Sprintf("0 to %v: the capacity minus the count of %v", c.capacity-n, n)}
	case c.within > 0 && !(c.capacity-waits >= -c.always(c.within)):
		return &InvalidError{Limit: c.name, Field: "count", Value: waits, never: !(c.capacity-waits >= -c.comes(c.within)),
			Want: fmt.Sprintf("at most %v: the capacity of %v plus what flows in within any %v, or a longer Within",
				c.capacity+c.always(c.within), c.capacity, time.Duration(c.within)*time.Microsecond)}
	case n > 0 && n < c.capacity*smallest:
		return &InvalidError{Limit: c.name, Field: "count", Value: n,
			Want: fmt.Sprintf("0, or at least a 2^40th of the capacity of %v: less would be lost in rounding", c.capacity)}
	}
	return nil
}

// only is the indexes of a lone request. Nobody writes to it.
var only = []int{0}

// resolveAll checks the requests of one call, merges those for the same row and sorts by row: every call locks its rows in
// the same order, so that two calls cannot wait for each other.
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

// merge is resolveAll for some requests. For those of a batch, of says to which of its calls each
// belongs.
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
		if c.name != last.name || c.key != last.key || c.shard != last.shard {
			merged = append(merged, c)
			continue
		}
		if c.algebra != last.algebra {
			return nil, errUnlike(&c, "the same rule in both")
		}
		if c.reserve != last.reserve {
			return nil, errUnlike(&c, "OrReserve in both or in none")
		}
		if c.bounded != last.bounded || c.within != last.within {
			return nil, errUnlike(&c, "the same Within in both")
		}
		if c.credit != last.credit {
			return nil, errUnlike(&c, "OnCredit in both or in none")
		}
		if c.leave != last.leave {
			return nil, errUnlike(&c, "the same Leave in both")
		}
		if of != nil && of[c.indexes[0]] != of[last.indexes[len(last.indexes)-1]] {
			last.before = last.count
		}
		last.count += c.count
		last.indexes = append(last.indexes, c.indexes...)
		if err := last.inShadow(last.checkCount()); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

func errUnlike(c *call, want string) error {
	return &InvalidError{Limit: c.name, Field: "requests", Value: plain(fmt.Sprintf("two of them, for key %q", shorten(c.key))), Want: want}
}

// bare are the requests of verbs to which counts do not matter.
func bare(requests []Request) []Request {
	b := slices.Clone(requests)
	for i := range b {
		b[i].count, b[i].reserve, b[i].bounded, b[i].credit, b[i].leave = 0, false, false, false, 0
	}
	return b
}

func sortCalls(calls []call) {
	slices.SortStableFunc(calls, func(a, b call) int { return compareRows(&a, &b) })
}

// compareRows puts calls into the order in which everybody locks their rows.
func compareRows(a, b *call) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.key, b.key), cmp.Compare(a.shard, b.shard))
}
