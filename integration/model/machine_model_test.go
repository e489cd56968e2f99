package model

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// The limiter over again, as its documentation describes it: without a database, and without a
// thought for speed. Instants are in microseconds.

// account names a balance.
type account struct{ limit, key string }

func (a account) compare(b account) int {
	return cmp.Or(cmp.Compare(a.limit, b.limit), cmp.Compare(a.key, b.key))
}

// entry is what is kept of a balance.
type entry struct {
	value float64
	ts    int64
	until int64   // of a pause; 0 for none
	delay int64   // that pauses have added up to
	moved float64 // tokens by which the line has moved up
	rule  law     // that was written last; what may be reserved is not kept
}

// since is when its time goes on, or did.
func (e entry) since() int64 { return max(e.ts, e.until) }

// book has the balances; one that is missing is full.
type book map[account]entry

const fullUnderAnyRule = 1 << 53

func (b book) at(a account, w *law, now int64) entry {
	e, ok := b[a]
	if !ok {
		return entry{value: w.capacity, ts: now, rule: w.kept()}
	}
	e.value, e.ts, e.rule = w.balance(e, now), max(e.ts, now), w.kept()
	if e.until <= now {
		e.until = 0
	}
	return e
}

// ask is what a call wants of one balance.
type ask struct {
	account
	law     law
	n       float64
	reserve bool
	within  int64 // the most until it may run, if bounded
	bounded bool
	credit  bool // the next ones pay
	leave   float64
	request ratelimit.Request
}

// merge adds up what is for the same balance. It returns the error that the call is refused with,
// if it is.
func merge(asks []ask) (merged []ask, refused error) {
	for _, a := range asks {
		if err := a.never(); err != nil {
			return nil, err
		}
	}
	sorted := slices.Clone(asks)
	slices.SortStableFunc(sorted, func(a, b ask) int { return a.compare(b.account) })
	for _, a := range sorted {
		if n := len(merged); n == 0 || merged[n-1].account != a.account {
			merged = append(merged, a)
			continue
		}
		last := &merged[len(merged)-1]
		if last.law != a.law || last.reserve != a.reserve || last.bounded != a.bounded ||
			last.within != a.within || last.credit != a.credit || last.leave != a.leave {
			return nil, ratelimit.ErrInvalid
		}
		last.n += a.n
		if err := last.never(); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// try answers a call. If it is granted, after has the balances that it leaves.
func (b book) try(asks, merged []ask, now int64) (res ratelimit.Result, after book) {
	res = ratelimit.Result{OK: true, Outcomes: make([]ratelimit.Outcome, len(asks))}
	of := map[account]*ratelimit.Outcome{}
	after = book{}
	latest := int64(math.MinInt64)
	for _, a := range merged {
		o := &ratelimit.Outcome{Limit: a.limit, Key: a.key, Period: time.Duration(a.law.period) * time.Microsecond}
		of[a.account] = o
		e := b.at(a.account, &a.law, now)
		o.Value, o.Delay = e.value, time.Duration(e.delay)*time.Microsecond
		left, ok := a.grants(e)
		if !ok {
			res.OK = false
			o.RetryAt = instant(earliest(now, func(t int64) bool {
				_, ok := a.grants(b.at(a.account, &a.law, t))
				return ok
			}))
			if o.RetryAt.After(res.RetryAt) {
				res.RetryAt, res.Limit, res.Key = o.RetryAt, a.limit, a.key
			}
			continue
		}
		o.OK = true
		e = left
		after[a.account] = e
		latest = max(latest, e.ts)
	}
	if res.OK {
		for _, a := range merged {
			e, o := after[a.account], of[a.account]
			o.Value = e.value
			if e.value+a.own() < 0 || e.until != 0 {
				run, waits := e.until, e
				if waits.value += a.own(); waits.value < 0 {
					run = a.runs(e)
				}
				o.RunAt, o.PacedAt = instant(run), instant(a.law.paced(waits, a.n-a.own(), run))
			}
			if o.RunAt.After(res.RunAt) {
				res.RunAt, res.Limit, res.Key = o.RunAt, a.limit, a.key
			}
		}
	}
	for i, a := range asks {
		res.Outcomes[i] = *of[a.account]
	}
	return res, after
}

// latest is the clock reading of a grant: that of the row which is furthest ahead.
func (b book) latest(now int64) int64 {
	for _, e := range b {
		now = max(now, e.ts)
	}
	return now
}

// given is a grant that may be given back.
type given struct {
	res   ratelimit.Result
	takes []held
}

// held is what a call has taken of one balance, and how it left that.
type held struct {
	account
	law   law
	n     float64
	since int64
	owed  float64
	delay int64
	moved float64

	credit bool
}

// line is what was owed by those before it, if it may run without its own tokens.
func (h *held) line() (owed, own float64) {
	if h.credit {
		return h.owed - h.n, 0
	}
	return h.owed, h.n
}

func heldOf(merged []ask, after book) []held {
	takes := make([]held, len(merged))
	for i, a := range merged {
		e := after[a.account]
		takes[i] = held{a.account, a.law, a.n, e.since(), -e.value, e.delay, e.moved, a.credit}
	}
	return takes
}

// end of the window that its tokens came from, as far as is put off now.
func (h *held) end(delay int64) int64 {
	return h.law.windowStart(h.since) + h.law.period + delay - h.delay
}

// unused is what e can have back of it. Of a window it is nothing once the balance stands in a
// later one, or, where somebody waits, once a later one has begun; of what was granted ahead there
// is the part of the windows that are not over.
func (h *held) unused(e entry, used float64, now int64) float64 {
	if !h.law.windowed {
		return h.n - used
	}
	at := e.since()
	if e.value < 0 {
		at = max(at, now)
	}
	later := float64(h.law.window(at)-h.law.window(h.since)) - math.Floor(
		float64(e.delay-h.delay)/float64(h.law.period),
	)
	switch {
	case later <= 0:
		return h.n - used
	case h.owed <= 0: // it has waited for nobody, so nobody's excess has put it off
		return -used
	}
	return min(h.n, h.owed-(e.moved-h.moved)-float64(h.law.rate*(later-1))) - used
}

// give gives back what was not used of a take. It moves the line up, if that is asked for, by what
// it repays of a debt.
func (b book) give(h held, used float64, move bool, now int64) {
	e, ok := b[h.account]
	if !ok { // it was rolled back
		b[h.account] = entry{value: fullUnderAnyRule, ts: now, rule: h.law.kept()}
		return
	}
	n := h.unused(e, used, now)
	if n <= 0 {
		return
	}
	before := e.value
	e.value = max(before, min(e.rule.capacity, before+n))
	if move {
		e.moved += max(0, -before) - max(0, -e.value)
	}
	b[h.account] = e
}

// charge takes n tokens more than there may be, ahead of those who wait.
func (b book) charge(h held, n float64, now int64) {
	e, ok := b[h.account]
	if !ok {
		b[h.account] = entry{value: h.law.capacity - n, ts: now, rule: h.law.kept()}
		return
	}
	e = b.at(h.account, &e.rule, now)
	e.moved -= max(0, n-e.value) - max(0, -e.value)
	e.value -= n
	b[h.account] = e
}

// giveBack undoes a take. What was there at once moves those up who wait; what was granted ahead
// does not.
func (b book) giveBack(takes []held, now int64) {
	for _, h := range takes {
		owed, _ := h.line()
		b.give(h, 0, owed <= 0, now)
	}
}

func (b book) settle(takes []held, used []float64, now int64) {
	for i, h := range takes {
		switch n := used[i]; {
		case n < h.n:
			b.give(h, n, true, now)
		case n > h.n:
			b.charge(h, n-h.n, now)
		}
	}
}

// renew charges anew for takes, whose balances come in several of them: those who come first are
// served first, and all of them before those who wait already.
func (b book) renew(reservations [][]held, now int64) {
	sums, first := map[account]float64{}, map[account]held{}
	for _, takes := range reservations {
		for _, h := range takes {
			if _, ok := first[h.account]; !ok {
				first[h.account] = h
			}
			sums[h.account] += h.n
		}
	}
	ahead := map[account]float64{}
	for a, n := range sums {
		b.charge(first[a], n, now)
		ahead[a] = -max(0, b[a].value+n)
	}
	for _, takes := range reservations {
		for i := range takes {
			h := &takes[i]
			e := b[h.account]
			ahead[h.account] += h.n
			h.since, h.owed, h.delay, h.moved = e.since(), ahead[h.account], e.delay, e.moved
		}
	}
}

// due is when the take may run, and when within its window, as its balance stands.
func (h *held) due(delay int64, moved float64, now int64) (run, paced int64) {
	run, paced = h.since, h.since
	line, own := h.line()
	if line <= 0 {
		return min(run, now), min(paced, now)
	}
	if owed := line - (moved - h.moved); owed > 0 {
		e := entry{value: -owed, ts: h.since}
		run = h.law.since(e, h.since, 0, 0)
		paced = h.law.paced(e, own, run)
	}
	return run + delay - h.delay, paced + delay - h.delay
}

// settleable is until when takes can be settled.
func settleable(takes []held) int64 {
	last := int64(math.MinInt64)
	for i := range takes {
		run, _ := takes[i].due(takes[i].delay, takes[i].moved, math.MaxInt64)
		last = max(last, run)
	}
	return last + (30 * 24 * time.Hour).Microseconds()
}

func (b book) reset(asks []ask, now int64) {
	for _, a := range asks {
		e := b[a.account]
		e.value, e.ts, e.rule = fullUnderAnyRule, now, a.law.kept()
		b[a.account] = e
	}
}

// pause stops time for d microseconds.
func (b book) pause(asks []ask, now, d int64) {
	for _, a := range asks {
		e, ok := b[a.account]
		if !ok {
			b[a.account] = entry{value: fullUnderAnyRule, ts: now, until: now + d,
				delay: a.law.span(now, now+d), rule: a.law.kept()}
			continue
		}
		until := max(e.until, now+d)
		e.delay += a.law.span(max(e.since(), now), until)
		e.value, e.ts, e.until = max(e.value, e.rule.balance(e, now)), max(e.ts, now), until
		b[a.account] = e
	}
}

func (b book) resume(asks []ask, now int64) {
	for _, a := range asks {
		switch e, ok := b[a.account]; {
		case !ok:
			b[a.account] = entry{value: fullUnderAnyRule, ts: now, rule: a.law.kept()}
		case e.until > now:
			e.ts = max(e.ts, now)
			e.delay -= a.law.span(e.ts, e.until)
			e.until = 0
			b[a.account] = e
		}
	}
}

func (b book) value(a ask, now int64) ratelimit.State {
	e := b.at(a.account, &a.law, now)
	s := ratelimit.State{Value: e.value, TS: instant(a.law.windowStart(e.ts)),
		Delay: time.Duration(e.delay) * time.Microsecond, Moved: e.moved}
	if e.until != 0 {
		s.PausedUntil = instant(e.until)
	}
	return s
}

// normalized are the balances of a call that was denied by others, if its takes went ahead and were
// given back: refilled up to now.
func (b book) normalized(asks []ask, res ratelimit.Result, now int64) book {
	n := maps.Clone(b)
	for _, a := range asks {
		for _, o := range res.Outcomes {
			if o.OK && o.Limit == a.limit && o.Key == a.key {
				n[a.account] = b.at(a.account, &a.law, now)
			}
		}
	}
	return n
}

func instant(us int64) time.Time { return time.UnixMicro(us).UTC() }
