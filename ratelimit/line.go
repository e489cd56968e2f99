package ratelimit

import (
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// Behind reports whether t waits in the same queue as other and behind it: whether it moves up when
// other leaves the queue. Work that does not wait, or waits in another queue, is never behind.
func (t Take) Behind(other Take) bool {
	if t.Limit != other.Limit || t.Key != other.Key || t.row != other.row || !t.Ahead() {
		return false
	}
	if !t.rule.Paces(&other.rule) {
		mine, _ := t.RunAt(State{})
		others, _ := other.RunAt(State{})
		return mine.After(others)
	}
	// Each place in the line is the number of tokens that come before it since the line began. Only
	// differences matter, and float64 is exact enough for them.
	flowed := t.rule.Flows(other.left.Since+t.left.Delay-other.left.Delay, t.left.Since)
	return t.left.Owed-other.left.Owed+t.left.Moved-other.left.Moved+flowed > 0
}

// definitionDelay is how long after its definition a rule begins to count for work that already
// waits.
const definitionDelay = time.Second

// Redefined returns the take by the rule that this process has defined for its limit, and whether
// its time has changed. Until a second after the definition tokens flow in by the old rule, and
// what the take still owes then is repaid by the new one. s is the state of the limit and key, now
// is the database's clock.
//
// A take does not change if it has a rule of its own (see [Request.Rule]), if it does not wait, if
// this process has not defined its limit, or if only the capacity or MaxReserved is new.
func (t Take) Redefined(s State, now time.Time) (Take, bool) {
	v, ok := defined.Load(t.Limit)
	if !ok || t.ruled || !t.Ahead() || s.TS.IsZero() {
		return t, false
	}
	d := v.(*definition) //nolint:forcetypeassert // nothing else is stored
	rule := d.rule
	if rule.Phased {
		rule.SetOrigin(phase(t.Limit, t.Key, rule.Period))
	}
	layout, i := shard.Address(t.row)
	shares := rule.Shares(layout.Shards)
	rule = *shares.Of(i)
	age := time.Since(d.at) - definitionDelay
	if age < 0 || rule.Paces(&t.rule) {
		return t, false
	}
	put := s.Delay.Microseconds() - t.left.Delay
	owed := t.left.Owed - (s.Moved - t.left.Moved)
	since := t.left.Since + put // from then on it was repaid, with all pauses added
	from := max(since, now.Add(-age).UnixMicro())
	if owed -= max(0, t.rule.Flows(since, from)); owed <= 0 {
		return t, false // it was due before
	}
	t.rule, t.left = rule, algebra.Left{Since: from, Owed: owed, Delay: s.Delay.Microseconds(),
		Moved: s.Moved}
	return t, true
}
