package ratelimit

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// MaxNameBytes and MaxKeyBytes bound names and keys, because an entry of the primary key's index
// must fit into a third of a page.
const (
	MaxNameBytes = 255
	MaxKeyBytes  = 1024
)

// Limit is a named limit. [Define] returns it, usually once, for a package variable. Its balances
// are rows of the database, one for each key, found by the name: two programs, or two releases,
// that define the same name share them, whatever the numbers of their rules. A new number takes
// effect at once; tokens above a lowered capacity are dropped and debt is kept.
//
// A Limit is immutable and safe for concurrent use. The zero Limit is undefined: requests made from
// it are refused with an error that matches [ErrInvalid].
type Limit struct {
	def *definition
}

type definition struct {
	name    string
	rule    algebra.Rule
	bounded bool // its rule has a MaxReserved
	shards  int
	shadow  bool
	settle  time.Duration // 0: settleWithin
	args    *ruleArgs
	at      time.Time // when it was defined
}

// defined maps each name to its newest definition in this process. [Request.UnmarshalJSON] finds
// limits here, and work that waits is rescheduled by a changed rule: see [Take.Redefined].
var defined sync.Map // name -> *definition

// ruleArgs holds a limit's name and its rule's numbers as arguments of statements. It is made once
// per definition, because each conversion to any allocates.
type ruleArgs struct{ name, capacity, rate, period any }

func argsOf(name string, a *algebra.Rule) *ruleArgs {
	return &ruleArgs{name, a.Capacity, a.Rate, a.Period}
}

// Option changes a limit: see [Shards], [Shadow] and [SettleWithin].
type Option func(*definition)

// Shards divides each balance of a limit into n rows, so that concurrent transactions do not wait
// for one row. Use it for a limit that many callers share. Each shard is a limit by itself, with an
// n-th of the capacity, of the rate and of MaxReserved. A call takes from one of them.
//
// These hold as without shards:
//
//   - In any interval no more is granted than the capacity and what flows in, counted at the time
//     at which work may run. There are two exceptions. Calls with [Request.OnCredit] may exceed
//     this by one count for each shard. A call for more than a shard's part of the capacity is
//     taken in parts. If its work has to wait for the last part, the limit may be exceeded by the
//     parts that were ready earlier: see docs/shards.md of the repository.
//   - No token is lost or created when calls give back or settle, or when the number of shards
//     changes. Tokens go back to the rows that they were taken from, each up to its share.
//     [Limiter.Value] is the sum of the shards.
//   - A count up to the capacity is granted if the shards have it together, unless other callers
//     are taking it: tokens that no shard has alone are gathered from several, by one caller at a
//     time. RetryAt is exact if nobody else calls. A call that loses to others is denied, with a
//     RetryAt that is at most 100 ms ahead. The same can happen to a call in a transaction that
//     InTx has not begun, or that has already sent other statements, if others have emptied a shard
//     and this process does not know it yet: to avoid deadlocks, the call cannot try every shard.
//
// These differ:
//
//   - A reservation waits for its own shard, even if another shard has tokens again. A reservation
//     of more than a share of the capacity is taken in parts, and runs when the last part may. It
//     may run later than with one row, by about n times the count divided by the rate: half a
//     minute for 10 shards, a count of 5 and a rate of 100 a minute.
//   - A shard that is full gains nothing while others refill. So the limit may be full again later
//     than without shards.
//   - [Request.Leave] reads all shards first. A call leaves n in all of them together, as it read
//     them, and its part of n in each that it takes from. So calls that leave n never together
//     leave less, however many run at once. Calls without Leave may take tokens meanwhile: then
//     less is left.
//
// n is 1, the default, to [shard.Max]. Use twice as many shards as you have concurrent
// transactions, but at most capacity / (8 x the usual count). Limits of a few calls a second need
// no shards. Weir may use fewer: a token bucket has at most as many shards as its capacity has
// whole tokens. For a window Weir uses the largest number, up to n, that divides both its rate and
// its capacity into whole tokens. Figures are in docs/shards.md of the repository.
//
// A share should hold at least eight usual counts and, if calls reserve, be refilled by one of them
// a second. Weir does not know the usual count, so it refuses no n for being larger. What is
// promised holds then, too, but calls make more round trips and reservations run later.
//
// The database knows how many shards a limit and key has. The first call with a larger n changes
// that: every token is kept, and every reservation keeps its time. A smaller n changes nothing: see
// [Limiter.Reshard].
func Shards(n int) Option { return func(d *definition) { d.shards = n } }

// SettleWithin sets how long a reservation of the limit can be settled or released: until d after
// the time at which its work could run, according to the Result of the grant. After that it counts
// as settled: the estimate stays charged, and nothing goes back twice. A row of about a hundred
// bytes is kept for each settlement until then, and [Limiter.Prune] deletes it: 30 days with 100
// settlements a second are 260 million rows, and a day is 9 million. Choose more than the work can
// take, with its retries and with pauses that may delay it.
//
// The time is part of the [Reservation]: a new d holds for calls that are granted from then on. For
// a reservation of several limits the longest time holds. d is a second to ten years. Default: 30
// days.
func SettleWithin(d time.Duration) Option {
	return func(def *definition) { def.settle = d }
}

// Define makes a limit from a name and a rule. The name identifies its rows for ever: 1 to 255
// bytes of UTF-8 without NUL, and not ending in " (shadow)". Define each name once. A bad name,
// rule or option is refused with an [*InvalidError] that says which and what would be right.
func Define(name string, rule Rule, options ...Option) (Limit, error) {
	if why := where.Unfit(name, MaxNameBytes); why != "" || name == "" {
		if name == "" {
			why = "it is empty"
		}
		return Limit{}, &InvalidError{Limit: name, Field: "name", Value: where.Short(name),
			Want: "1 to 255 bytes of UTF-8 without NUL: " + why}
	}
	a, err := compileRule(name, rule)
	if err != nil {
		return Limit{}, err
	}
	d := &definition{name: strings.Clone(name), rule: a, shards: 1, settle: settleWithin}
	for _, o := range options {
		if o != nil {
			o(d)
		}
	}
	if strings.HasSuffix(name, shadowed) {
		return Limit{}, &InvalidError{Limit: name, Field: "name", Value: where.Short(name),
			Want: "one that does not end in \"" + shadowed + "\": Shadow adds that"}
	}
	if d.shadow {
		d.name += shadowed
	}
	d.args = argsOf(d.name, &a)
	d.bounded = rule.bounded()
	if d.shards < 1 || d.shards > shard.Max {
		return Limit{}, &InvalidError{Limit: name, Field: "Shards", Value: d.shards,
			Want: fmt.Sprintf("a number from 1 to %d", shard.Max)}
	}
	d.shards = a.MostShards(d.shards)
	if d.settle < time.Second || d.settle > mostSettle {
		return Limit{}, &InvalidError{Limit: name, Field: "SettleWithin", Value: d.settle,
			Want: "a second to ten years"}
	}
	if d.settle == settleWithin {
		d.settle = 0 // the default: reservations then need not carry it
	}
	d.at = time.Now()
	defined.Store(d.name, d)
	return Limit{d}, nil
}

// MustDefine is like [Define] but panics on an error. It is for package variables.
func MustDefine(name string, rule Rule, options ...Option) Limit {
	l, err := Define(name, rule, options...)
	if err != nil {
		panic(err)
	}
	return l
}

// Name returns the name that the limit was defined with; that of a [Shadow] ends in " (shadow)".
func (l Limit) Name() string {
	if l.def == nil {
		return ""
	}
	return l.def.name
}

// Rule returns the rule that the limit was defined with: a TokenBucket or a FixedWindow, with its
// Capacity, and with MaxReserved where it is bounded. The Start of a window is that of any of its
// windows. The zero Limit has none.
func (l Limit) Rule() Rule {
	if l.def == nil {
		return nil
	}
	a := &l.def.rule
	capacity, period := a.Capacity, time.Duration(a.Period)*time.Microsecond
	var reserved *float64
	if l.def.bounded {
		reserved = Tokens(a.Debt)
	}
	if !a.Windowed {
		return TokenBucket{a.Rate, period, &capacity, reserved}
	}
	w := FixedWindow{Rate: a.Rate, Period: period, Capacity: &capacity, MaxReserved: reserved}
	if !a.Phased {
		w.Start = fromMicro(a.Origin)
	}
	return w
}

// Shards returns how many shards the limit is to have: see the option [Shards]. The zero Limit has
// none.
func (l Limit) Shards() int {
	if l.def == nil {
		return 0
	}
	return l.def.shards
}

// For returns a request for one token of a key's balance: a user, a tenant, an address. The key is
// 1 to 1024 bytes of UTF-8 without NUL that do not begin with [shard.Reserved]; anything else is
// refused when the request is used. An empty key, which is usually a mistake, is refused too, and
// is not the same as [Limit.Global].
//
// A key that clients can choose freely limits nobody, and each costs a row. Hash long keys.
func (l Limit) For(key string) Request {
	return Request{def: l.def, key: key, keyed: true, count: 1}
}

// Global returns a request for one token of a limit without keys, which has one balance.
func (l Limit) Global() Request { return Request{def: l.def, count: 1} }

func compileRule(name string, rule Rule) (algebra.Rule, error) {
	if isNil(rule) {
		return algebra.Rule{}, &InvalidError{Limit: name, Field: "rule", Value: nil,
			Want: "a TokenBucket or a FixedWindow"}
	}
	a, invalid := rule.compile()
	if invalid != nil {
		invalid.Limit = name
		return a, invalid
	}
	return a, nil
}

// phase derives from the limit's name and the key where their windows start. The same pair always
// gets the same start, and keys are spread over the period.
func phase(name, key string, period int64) int64 {
	h := fnv.New64a()
	// so that ("ab","c") differs from ("a","bc")
	b := binary.BigEndian.AppendUint64(nil, uint64(len(name)))
	_, _ = h.Write(append(append(b, name...), key...))
	return int64(h.Sum64() % uint64(period)) //nolint:gosec // both fit: the remainder is below period
}
