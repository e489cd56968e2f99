package ratelimit

import (
	"math"
	"time"
)

// algebra is a rule, ready for arithmetic: whole microseconds and float64 tokens.
//
// take_sql.go and give_sql.go compute the same in SQL. Each formula here is written in the same
// order as there, so that both round alike. Otherwise a caller that comes at its RetryAt could be
// denied again. The conversions to float64 keep the compiler from fusing a multiplication with an
// addition, which would round differently.
type algebra struct {
	windowed bool
	phased   bool    // windowed, and the origin is still to be derived from the name and the key
	capacity float64 // the most that a balance holds
	rate     float64 // tokens a period
	period   int64   // microseconds
	origin   int64   // windowed: the start of some window, in microseconds since the Unix epoch
	debt     float64 // how far below zero a reservation may take the balance
}

// full is a balance that is full under every rule: up to it float64 represents every integer. A
// balance is cut to the capacity whenever it is read.
const full = 1 << 53

// endOfTime bounds every instant that is computed: it is the last that RFC 3339, and so JSON, can
// write.
var endOfTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMicro()

// refilled returns the balance at now of a row (value, ts). It is normal that ts is later than now:
// a statement reads the clock, and may then wait for the row. In that case no time has passed.
func (a *algebra) refilled(value float64, ts, now int64) float64 {
	if a.windowed {
		return a.afterWindows(value, a.window(now)-a.window(ts))
	}
	return min(a.capacity, value+float64(a.rate*max(0, micros(now-ts)))/float64(a.period))
}

// micros converts a difference of d microseconds as SQL does: round(date_part('epoch', ...) * 1e6),
// where Postgres adds up days and seconds of a day separately. The result is exact below 2^51,
// which is 71 years. Beyond that Postgres rounds, and micros must round alike.
func micros(d int64) float64 {
	const day = 86400 * 1e6
	seconds := float64(d%day)/1e6 + float64(86400*float64(d/day))
	return math.RoundToEven(float64(seconds * 1e6))
}

func (a *algebra) afterWindows(value float64, n int64) float64 {
	return min(a.capacity, value+float64(a.rate*float64(max(0, n))))
}

// window returns the number of the window that contains t.
func (a *algebra) window(t int64) int64 {
	return int64(math.Floor(micros(t-a.origin) / float64(a.period)))
}

// windowStart returns the first instant of the window that contains t. For a token bucket it
// returns t.
func (a *algebra) windowStart(t int64) int64 {
	if !a.windowed {
		return t
	}
	n := a.window(t)
	start := a.origin + n*a.period
	for a.window(start) < n { // needed where micros rounds
		start++
	}
	return start
}

// floor is the lowest balance that a take may leave.
func (a *algebra) floor(reserve bool) float64 {
	if reserve {
		return -a.debt
	}
	return 0
}

// comes returns how many tokens can come in d microseconds at most; always returns how many come at
// least. They differ for windows only.
func (a *algebra) comes(d int64) float64 {
	if a.windowed {
		return a.rate * float64((d+a.period-1)/a.period)
	}
	return float64(a.rate*float64(d)) / float64(a.period)
}

func (a *algebra) always(d int64) float64 {
	if a.windowed {
		return a.rate * float64(d/a.period)
	}
	return a.comes(d)
}

// repaid reports whether b owes nothing any more d microseconds after its ts. The time of a pause
// does not count.
func (a *algebra) repaid(b balance, d int64) bool {
	paused := b.since() - b.ts
	if paused > d {
		return false
	}
	if a.windowed {
		n := math.Floor((micros(b.ts-a.origin)+float64(d))/float64(a.period)) - float64(a.window(b.since()))
		return b.value+float64(a.rate*max(0, n)) >= 0
	}
	return b.value+float64(a.rate*max(0, float64(d)-micros(paused)))/float64(a.period) >= 0
}

// earliest returns the first instant, not before now, at which a take of n from the row (value, ts)
// leaves at least floor. The caller makes sure that there is one: capacity-n >= floor.
//
// The closed formula is only a first guess. In float64 it is off by a microsecond in a few per cent
// of all cases, so earliest searches around it with the same arithmetic that decides.
func (a *algebra) earliest(value float64, ts, now int64, n, floor float64) int64 {
	if a.refilled(value, ts, now)-n >= floor {
		return now
	}
	from := max(now, ts)
	need := floor + n - value
	if a.windowed {
		base := a.window(ts)
		k := search(a.window(from)-base, (endOfTime-a.origin)/a.period-base, need/a.rate, func(k int64) bool {
			return a.afterWindows(value, k)-n >= floor
		})
		return search(from, endOfTime, float64(a.origin+(base+k)*a.period), func(t int64) bool {
			return a.refilled(value, ts, t)-n >= floor
		})
	}
	return ts + search(from-ts, endOfTime-ts, need*float64(a.period)/a.rate, func(d int64) bool {
		return a.refilled(value, ts, ts+d)-n >= floor
	})
}

// paced spreads work that was reserved in one window over that window. run is when a debt is
// repaid, which for a window is its first instant. paced moves it into the window by the share of
// the window's tokens that was reserved before this take of n. debt is what is owed after the take,
// as of since.
func (a *algebra) paced(debt, n float64, since, run int64) int64 {
	if !a.windowed {
		return run
	}
	earlier := a.rate * float64(a.window(run)-a.window(since)-1) // tokens that the windows before that one bring
	share := max(0, debt-n-earlier) / a.rate
	into := int64(min(share, 1) * float64(a.period))
	return min(run+min(into, a.period-1), endOfTime)
}

// search returns the smallest x in (low, high] for which ok holds, or high if there is none. ok
// must be monotone, and false at low. The search begins at guess.
func search(low, high int64, guess float64, ok func(int64) bool) int64 {
	x := high
	if guess < float64(high) {
		x = max(low+1, int64(math.Ceil(guess)))
	}
	for step := int64(1); x < high && !ok(x); step *= 2 {
		low, x = x, x+min(step, high-x)
	}
	for step := int64(1); x-step > low; step *= 2 {
		if !ok(x - step) {
			low = x - step
			break
		}
		x -= step
	}
	for low+1 < x {
		if mid := low + (x-low)/2; ok(mid) {
			x = mid
		} else {
			low = mid
		}
	}
	return x
}

func fromMicro(us int64) time.Time { return time.UnixMicro(us).UTC() }
