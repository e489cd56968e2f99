package integration

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// The limiter over again, as its documentation describes it: without a database, and without a thought for speed. Instants
// are in microseconds.

// law is a rule with nothing left unset.
type law struct {
	windowed       bool
	rate, capacity float64
	period         int64
	reserved       float64 // MaxReserved; infinite if unset
	start          int64   // of some window
}

// account names a balance.
type account struct{ limit, key string }

func (a account) compare(b account) int {
	return cmp.Or(cmp.Compare(a.limit, b.limit), cmp.Compare(a.key, b.key))
}

// entry is what is kept of a balance.
type entry struct {
	value float64
	ts    int64
	until int64 // of a pause; 0 for none
	delay int64 // that pauses have added up to
}

// since is when its time goes on, or did.
func (e entry) since() int64 { return max(e.ts, e.until) }

// book has the balances; one that is missing is full.
type book map[account]entry

const fullUnderAnyRule = 1 << 53

func (w *law) window(t int64) int64 {
	t -= w.start
	into := t % w.period
	if into < 0 {
		into += w.period
	}
	return (t - into) / w.period
}

func (w *law) windowStart(t int64) int64 {
	if !w.windowed {
		return t
	}
	return w.start + w.window(t)*w.period
}

// balance is min(value + rate*steps, capacity).
func (w *law) balance(e entry, now int64) float64 {
	steps := float64(w.rate*float64(max(0, now-e.since()))) / float64(w.period)
	if w.windowed {
		steps = w.rate * float64(max(0, w.window(now)-w.window(e.since())))
	}
	return min(w.capacity, e.value+steps)
}

// span is how much later things come that a pause puts off.
func (w *law) span(from, to int64) int64 {
	if w.windowed {
		return max(0, w.window(to)-w.window(from)) * w.period
	}
	return max(0, to-from)
}

func (b book) at(a account, w *law, now int64) entry {
	e, ok := b[a]
	if !ok {
		return entry{value: w.capacity, ts: now}
	}
	e.value, e.ts = w.balance(e, now), max(e.ts, now)
	if e.until <= now {
		e.until = 0
	}
	return e
}

// since is the first instant from now on at which n tokens can be taken from e and leave the least.
func (w *law) since(e entry, now int64, n, least float64) int64 {
	ok := func(t int64) bool { return w.balance(e, t)-n >= least }
	if ok(now) {
		return now
	}
	low, high := now, now+1
	for !ok(high) {
		low, high = high, high+2*(high-now)
	}
	for low+1 < high {
		if mid := (low + high) / 2; ok(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// paced is when to start what a take of n, which left e, has reserved for the window that begins at run.
func (w *law) paced(e entry, n float64, run int64) int64 {
	if !w.windowed || e.value >= 0 {
		return run
	}
	before := -e.value - n // owed to others
	for at := w.windowStart(e.since()) + w.period; at < run; at += w.period {
		before -= w.rate
	}
	return run + min(int64(max(0, before)/w.rate*float64(w.period)), w.period-1)
}

// ask is what a call wants of one balance.
type ask struct {
	account
	law     law
	n       float64
	reserve bool
	request ratelimit.Request
}

func (a *ask) least() float64 {
	if a.reserve {
		return -a.law.reserved
	}
	return 0
}

func (a *ask) never() bool { return a.law.capacity-a.n < a.least() }

// merge adds up what is for the same balance. It returns the error that the call is refused with, if it is.
func merge(asks []ask) (merged []ask, refused error) {
	for _, a := range asks {
		if a.never() {
			return nil, ratelimit.ErrNeverGranted
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
		if last.law != a.law || last.reserve != a.reserve {
			return nil, ratelimit.ErrInvalid
		}
		last.n += a.n
	}
	for _, a := range merged {
		if a.never() {
			return nil, ratelimit.ErrNeverGranted
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
		closed := e.until != 0 && !a.reserve
		if closed || e.value-a.n < a.least() {
			res.OK = false
			from := now
			if closed {
				from = e.until
			}
			o.RetryAt = instant(a.law.since(b[a.account], from, a.n, a.least()))
			if o.RetryAt.After(res.RetryAt) {
				res.RetryAt, res.Limit, res.Key = o.RetryAt, a.limit, a.key
			}
			continue
		}
		o.OK = true
		e.value -= a.n
		after[a.account] = e
		latest = max(latest, e.ts)
	}
	if res.OK {
		for _, a := range merged {
			e, o := after[a.account], of[a.account]
			o.Value = e.value
			if e.value < 0 || e.until != 0 {
				run := e.until
				if e.value < 0 {
					run = a.law.since(e, e.since(), 0, 0)
				}
				o.RunAt, o.PacedAt = instant(run), instant(a.law.paced(e, a.n, run))
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
	res    ratelimit.Result
	merged []ask
	after  book
}

// end of the window that its tokens came from, as far as is put off now.
func (g *given) end(a ask, delay int64) int64 {
	e := g.after[a.account]
	return a.law.windowStart(e.since()) + a.law.period + delay - e.delay
}

// giveBack undoes a take. A window's tokens are lost once the balance stands in a later one.
func (b book) giveBack(g given, now int64) {
	for _, a := range g.merged {
		e, ok := b[a.account]
		switch {
		case !ok: // it was rolled back
			b[a.account] = entry{value: fullUnderAnyRule, ts: now}
		case !a.law.windowed || e.since() < g.end(a, e.delay):
			e.value = max(e.value, min(a.law.capacity, e.value+a.n))
			b[a.account] = e
		}
	}
}

func (b book) reset(asks []ask, now int64) {
	for _, a := range asks {
		e := b[a.account]
		e.value, e.ts = fullUnderAnyRule, now
		b[a.account] = e
	}
}

// pause stops time for d microseconds.
func (b book) pause(asks []ask, now, d int64) {
	for _, a := range asks {
		e, ok := b[a.account]
		if !ok {
			b[a.account] = entry{fullUnderAnyRule, now, now + d, d}
			continue
		}
		until := max(e.until, now+d)
		e.delay += a.law.span(max(e.since(), now), until)
		e.value, e.ts, e.until = a.law.balance(e, now), max(e.ts, now), until
		b[a.account] = e
	}
}

func (b book) resume(asks []ask, now int64) {
	for _, a := range asks {
		switch e, ok := b[a.account]; {
		case !ok:
			b[a.account] = entry{value: fullUnderAnyRule, ts: now}
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
	s := ratelimit.State{Value: e.value, TS: instant(a.law.windowStart(e.ts)), Delay: time.Duration(e.delay) * time.Microsecond}
	if e.until != 0 {
		s.PausedUntil = instant(e.until)
	}
	return s
}

// normalized are the balances of a call that was denied by others, if its takes went ahead and were given back: refilled
// up to now.
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
