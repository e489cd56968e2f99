package weirtest

import (
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

type account struct{ limit, key string }

// balance is what a row keeps: its TS is when it was written, whatever windows it was written by.
type balance struct {
	ratelimit.State
	by ratelimit.Request // whose rule stands in it
}

// taken is a call that was granted, and how it has left its balances.
type taken struct {
	requests []ratelimit.Request
	outcomes []ratelimit.Outcome
	left     []ratelimit.State
}

// stands is how a balance that there is stands by now and by its own rule, and what it holds by that.
func (l *Limiter) stands(b balance) (value, capacity float64) {
	res, states, err := l.tell(countless([]ratelimit.Request{b.by}))
	if err != nil {
		return b.Value, full
	}
	return states[0].Value, res.Outcomes[0].Capacity
}

// putOff is by how much a pause puts off what waits: its length, or that of the windows that begin in it.
func putOff(o ratelimit.Outcome, from, to time.Time) time.Duration {
	if o.WindowEnds.IsZero() {
		return max(0, to.Sub(from))
	}
	return o.Period * time.Duration(max(0, windows(o, to)-windows(o, from)))
}

// windows is how many windows have begun since that of a decision, when t is.
func windows(o ratelimit.Outcome, t time.Time) float64 {
	return 1 + math.Floor(float64(t.Sub(o.WindowEnds))/float64(o.Period))
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// counts are how many tokens were taken from each balance.
func (t taken) counts() map[account]float64 {
	counts := make(map[account]float64)
	for _, r := range t.requests {
		counts[of(r)] += r.N()
	}
	return counts
}

// returned is b once n tokens of a take are given back.
func (l *Limiter) returned(b balance, n float64, o ratelimit.Outcome, then ratelimit.State, moves bool) balance {
	left := l.unused(n, o, then, b.State)
	if left <= 0 {
		return b
	}
	was := b.Value
	_, capacity := l.stands(b)
	b.Value = max(was, min(capacity, was+left))
	if was < 0 && moves {
		b.Moved += -was - max(0, -b.Value)
	}
	return b
}

// unused is what is left of n tokens of a take. Of a window's, nothing is once the key was taken from in a later one, but what was
// owed and is not repaid yet.
func (l *Limiter) unused(n float64, o ratelimit.Outcome, then, s ratelimit.State) float64 {
	if o.WindowEnds.IsZero() {
		return n
	}
	at := latest(s.TS, s.PausedUntil)
	if s.Value < 0 {
		at = latest(at, l.now())
	}
	later := windows(o, at) - windows(o, latest(then.TS, then.PausedUntil)) - math.Floor(float64(s.Delay-then.Delay)/float64(o.Period))
	if later <= 0 {
		return n
	}
	return min(n, -o.Value-(s.Moved-then.Moved)-o.Rate*(later-1))
}

func of(r ratelimit.Request) account { return account{r.Limit().Name(), r.Key()} }
