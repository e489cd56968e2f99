package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// account is a balance: of one key of one limit.
type account struct{ Limit, Key string }

// take is what one transaction takes of one account.
type take struct {
	Account account
	Tokens  float64
}

// op is a transaction of the application.
type op struct {
	ID      string
	Level   string  // isolation level; "" for the default
	Works   []take  // each with a row in work
	Reserve *take   // with a row in reservation and a job
	Shards  int     // that its limits are defined with; 0: none
	Settles bool    // in a transaction after it, which need not succeed
	Used    float64 // the part of what it took for which it settles: nothing, half of it, or more
	Auto    []take  // without a transaction: accounts of their own, which say by being there that they were taken from
}

// record is what the application's caller knows of a transaction.
type record struct {
	op    op
	class class
	text  string  // of the error
	bound account // denied: which account did
	again bool    // and is likely to have the tokens in a moment
	there bool    // it was in the database when that was last looked at
}

// books are what the database has.
type books struct {
	balances     map[account]float64
	ahead        map[account]float64 // of them: what flows in until a pause ends that a change of shards has made
	letGo        map[account]float64 // what full shards have lost in such a pause, if written down
	unsure       map[account]bool    // whether they have let go more
	shards       map[account]int     // that they have now
	works        []entry
	reservations []reservation
	jobs         []job
}

type entry struct {
	id string
	take
}

type reservation struct {
	entry
	job   int64
	runAt *time.Time // nil: at once
}

type job struct {
	number int64
	id     string // of the op, in its arguments
	due    time.Time
}

// terms are the numbers of a limit.
type terms struct {
	capacity, debt float64
	private        bool // each of its accounts belongs to one op, by its id
}

// tolerance covers what flows in during a round, and rounding.
const tolerance = 1e-6

// audit returns what is wrong in the books, by themselves and by what the callers were told, and
// the accounts of which it knows only that they are within bounds.
func audit(
	limits map[string]terms, b *books, records map[string]*record,
) (violations []string, bounded []account) {
	a := auditor{limits: limits, b: b, records: records, found: map[string]*trace{}}
	a.trace()
	a.accounts()
	a.jobs()
	a.told()
	slices.Sort(a.violations)
	return a.violations, a.bounded
}

type auditor struct {
	limits     map[string]terms
	b          *books
	records    map[string]*record
	found      map[string]*trace // by id
	violations []string
	bounded    []account
}

// trace is what an op has left in the database.
type trace struct {
	works        []take
	reservations []take
	jobs         int
	auto         []take
}

func (a *auditor) say(format string, args ...any) {
	a.violations = append(a.violations, fmt.Sprintf(format, args...))
}

func (a *auditor) of(id string) *trace {
	if a.found[id] == nil {
		a.found[id] = &trace{}
	}
	return a.found[id]
}

func (a *auditor) trace() {
	for _, w := range a.b.works {
		f := a.of(w.id)
		f.works = append(f.works, w.take)
	}
	for _, r := range a.b.reservations {
		f := a.of(r.id)
		f.reservations = append(f.reservations, r.take)
	}
	for _, j := range a.b.jobs {
		a.of(j.id).jobs++
	}
	for acc, value := range a.b.balances {
		if l := a.limits[acc.Limit]; l.private {
			f := a.of(acc.Key)
			f.auto = append(f.auto, take{acc, l.capacity - value})
		}
	}
}

// accounts: what was done is what is gone, and never more than there was.
func (a *auditor) accounts() {
	done, beyond := map[account]float64{}, map[account]float64{}
	for _, w := range a.b.works {
		done[w.Account] += w.Tokens
		beyond[w.Account] += a.beyond(w.id, w.take)
	}
	for _, r := range a.b.reservations {
		done[r.Account] += r.Tokens
		beyond[r.Account] += a.beyond(r.id, r.take)
	}
	for acc, tokens := range done {
		l, known := a.limits[acc.Limit]
		if !known {
			a.say("%v: no such limit", acc)
			continue
		}
		if tokens > l.capacity+l.debt+a.b.ahead[acc]+beyond[acc]+tolerance {
			a.say("%v: work for %v tokens was admitted, of %v", acc, tokens, l.capacity+l.debt)
		}
		if _, has := a.b.balances[acc]; !has {
			a.say("%v: work for %v tokens was admitted, and there is no balance", acc, tokens)
		}
	}
	for acc, value := range a.b.balances {
		l, known := a.limits[acc.Limit]
		switch gone := l.capacity - value + a.b.ahead[acc] - a.b.letGo[acc]; {
		case !known:
			a.say("%v: no such limit", acc)
		case value < -l.debt-beyond[acc]-tolerance || value > l.capacity+tolerance:
			a.say("%v: a balance of %v, out of %v to %v", acc, value, 0-l.debt, l.capacity)
		case l.private || same(gone, done[acc]):
		case a.bounds(acc, l.capacity-value, done[acc], gone):
			a.bounded = append(a.bounded, acc)
		default:
			a.say("%v: %v tokens are gone, and work was admitted for %v", acc, gone, done[acc])
		}
	}
}

// bounds reports whether full shards may have let go the difference between what is gone of an
// account and what was done. That is so if a shard of it waits for the end of a merge, and either a
// call has changed the shards, or ops settle and tokens may have come back to a full shard: nobody
// writes down what is lost by these. No more can be lost than what flows in until the end.
func (a *auditor) bounds(acc account, least, done, most float64) bool {
	return a.b.ahead[acc] > tolerance && (a.b.unsure[acc] || acc.settles()) &&
		least <= done+tolerance && done <= most+tolerance
}

// beyond is how much more an op has used than it took: that may exceed MaxReserved.
func (a *auditor) beyond(id string, used take) float64 {
	if r := a.records[id]; r != nil && r.op.Settles {
		for _, t := range r.op.takes() {
			if t.Account == used.Account && same(used.Tokens, t.Tokens*r.op.Used) {
				return max(0, used.Tokens-t.Tokens)
			}
		}
	}
	return 0
}

func same(a, b float64) bool { return a-b <= tolerance && b-a <= tolerance }

// jobs: each reservation has exactly one, and there are no others.
func (a *auditor) jobs() {
	byNumber := map[int64]job{}
	for _, j := range a.b.jobs {
		byNumber[j.number] = j
	}
	for _, r := range a.b.reservations {
		j, has := byNumber[r.job]
		switch {
		case !has:
			a.say("%s: its job %d does not exist", r.id, r.job)
		case j.id != r.id:
			a.say("%s: its job %d is that of %s", r.id, r.job, j.id)
		case r.runAt != nil && j.due.Before(*r.runAt):
			a.say("%s: its job is due at %v, before its tokens exist at %v", r.id, j.due, *r.runAt)
		}
	}
	for id, f := range a.found {
		if f.jobs != len(f.reservations) {
			a.say("%s: %d jobs for %d reservations", id, f.jobs, len(f.reservations))
		}
	}
}

// told: what is there is what the callers were told.
func (a *auditor) told() {
	for id := range a.found {
		if a.records[id] == nil {
			a.say("%s: nobody asked for it", id)
		}
	}
	for id, r := range a.records {
		f := a.of(id)
		whole, nothing := r.op.whole(f), len(f.works)+len(f.reservations)+f.jobs+len(f.auto) == 0
		r.there = !nothing
		switch {
		case !whole && !nothing:
			a.say("%s: neither whole nor absent: %+v of %+v (%s: %s)", id, *f, r.op, r.class, r.text)
		case r.class == granted && !whole:
			a.say("%s: its caller got nil, and there is nothing of it", id)
		case r.class.final() && !nothing:
			a.say("%s: its caller got an error (%s: %s), and it was committed", id, r.class, r.text)
		}
		if r.class == denied {
			a.denial(id, r)
		}
	}
}

// denial: nothing flows in, so a call that was denied would be denied now. But a limit with shards
// may tell a call to come again in a moment, as others were taking the tokens: they may have given
// them back.
func (a *auditor) denial(id string, r *record) {
	if r.again && r.op.Shards > 1 {
		return
	}
	l := a.limits[r.bound.Limit]
	if a.b.ahead[r.bound] > tolerance || r.op.settles(r.bound) {
		return // it waits for the end of the pause, or others have given back since
	}
	value, has := a.b.balances[r.bound]
	if !has {
		value = l.capacity
	}
	for _, t := range r.op.takes() {
		least := 0.0
		if r.op.Reserve != nil && t == *r.op.Reserve {
			least = -l.debt
			if n := max(r.op.Shards, a.b.shards[r.bound]); n > 1 && t.Tokens > l.capacity/float64(n) {
				return // it needs room in several lines, and these may be of unequal length
			}
		}
		if t.Account == r.bound {
			if value-t.Tokens >= least-tolerance {
				a.say("%s: denied %v tokens of %v, which has %v: %s", id, t.Tokens, r.bound, value, r.text)
			}
			return
		}
	}
	a.say("%s: denied by %v, which it did not ask", id, r.bound)
}

func (o *op) takes() []take {
	all := slices.Concat(o.Works, o.Auto)
	if o.Reserve != nil {
		all = append(all, *o.Reserve)
	}
	return all
}

// whole reports whether the op left exactly what it was to leave.
func (o *op) whole(f *trace) bool {
	var reserve []take
	if o.Reserve != nil {
		reserve = []take{*o.Reserve}
	}
	as := func(works, reserve []take) bool {
		return sameTakes(f.works, works) && sameTakes(f.reservations, reserve) &&
			f.jobs == len(reserve) && sameTakes(f.auto, o.Auto)
	}
	return as(o.Works, reserve) || o.Settles && as(used(o.Works, o.Used), used(reserve, o.Used))
}

// settles reports whether ops that take from this account settle.
func (o *op) settles(acc account) bool { return o.Shards > 1 && acc.settles() }

// settles reports whether ops that take from shards of this account settle.
func (acc account) settles() bool {
	return strings.ContainsAny(acc.Key[len(acc.Key)-1:], "13579")
}

func used(takes []take, part float64) []take {
	u := slices.Clone(takes)
	for i := range u {
		u[i].Tokens *= part
	}
	return u
}

func sameTakes(a, b []take) bool {
	if len(a) != len(b) {
		return false
	}
	for _, t := range a {
		if !slices.ContainsFunc(b, func(u take) bool { return t.Account == u.Account && same(t.Tokens, u.Tokens) }) {
			return false
		}
	}
	return true
}
