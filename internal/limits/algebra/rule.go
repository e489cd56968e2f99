package algebra

import (
	"math"
	"time"
)

// Rule is a rule, ready for arithmetic: whole microseconds and float64 tokens.
//
// The statements of internal/limits/statements compute the same in SQL. Each formula here is
// written in the same order as there, so that both round alike. Otherwise a caller that comes at
// its RetryAt could be denied again. The conversions to float64 keep the compiler from fusing a
// multiplication with an addition, which would round differently.
type Rule struct {
	Windowed bool
	Phased   bool    // windowed, and the origin is still to be derived from the name and the key
	Capacity float64 // the most that a balance holds
	Rate     float64 // tokens a period
	Period   int64   // microseconds
	Origin   int64   // windowed: the start of some window, in microseconds since the Unix epoch
	Debt     float64 // how far below zero a reservation may take the balance
}

const (
	// Smallest is the smallest count relative to the capacity: less would be lost in rounding.
	Smallest = 1.0 / (1 << 40)

	// Anchor is 2020-01-01: the origins of windows are moved close to it, to be small numbers.
	Anchor = int64(1_577_836_800) * 1_000_000
)

// Full is a balance that is full under every rule: up to it float64 represents every integer. A
// balance is cut to the capacity whenever it is read.
const Full = 1 << 53

// EndOfTime bounds every instant that is computed: it is the last that RFC 3339, and so JSON, can
// write.
var EndOfTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMicro()

// Refilled returns the balance at now of a row (value, ts). It is normal that ts is later than now:
// a statement reads the clock, and may then wait for the row. In that case no time has passed.
func (a *Rule) Refilled(value float64, ts, now int64) float64 {
	if a.Windowed {
		return a.AfterWindows(value, a.Window(now)-a.Window(ts))
	}
	return min(a.Capacity, value+float64(a.Rate*max(0, micros(now-ts)))/float64(a.Period))
}

// micros converts a difference of d microseconds as SQL does: round(date_part('epoch', ...) * 1e6),
// where Postgres adds up days and seconds of a day separately. The result is exact below 2^51,
// which is 71 years. Beyond that Postgres rounds, and micros must round alike.
func micros(d int64) float64 {
	const day = 86400 * 1e6
	seconds := float64(d%day)/1e6 + float64(86400*float64(d/day))
	return math.RoundToEven(float64(seconds * 1e6))
}

// AfterWindows returns a balance n windows later.
func (a *Rule) AfterWindows(value float64, n int64) float64 {
	return min(a.Capacity, value+float64(a.Rate*float64(max(0, n))))
}

// Window returns the number of the window that contains t.
func (a *Rule) Window(t int64) int64 {
	return int64(math.Floor(micros(t-a.Origin) / float64(a.Period)))
}

// WindowStart returns the first instant of the window that contains t. For a token bucket it
// returns t.
func (a *Rule) WindowStart(t int64) int64 {
	if !a.Windowed {
		return t
	}
	n := a.Window(t)
	start := a.Origin + n*a.Period
	for a.Window(start) < n { // needed where micros rounds
		start++
	}
	return start
}

// Floor is the lowest balance that a take may leave.
func (a *Rule) Floor(reserve bool) float64 {
	if reserve {
		return -a.Debt
	}
	return 0
}

// Comes returns how many tokens can come in d microseconds at most.
func (a *Rule) Comes(d int64) float64 {
	if a.Windowed {
		return a.Rate * float64((d+a.Period-1)/a.Period)
	}
	return float64(a.Rate*float64(d)) / float64(a.Period)
}

// Always returns how many tokens come in d microseconds at least. For windows it is less than
// Comes.
func (a *Rule) Always(d int64) float64 {
	if a.Windowed {
		return a.Rate * float64(d/a.Period)
	}
	return a.Comes(d)
}

// repaid reports whether b owes nothing any more d microseconds after its ts. The time of a pause
// does not count.
func (a *Rule) repaid(b Balance, d int64) bool {
	paused := b.Since() - b.TS
	if paused > d {
		return false
	}
	if a.Windowed {
		n := math.Floor((micros(b.TS-a.Origin)+float64(d))/float64(a.Period)) - float64(
			a.Window(b.Since()),
		)
		return b.Value+float64(a.Rate*max(0, n)) >= 0
	}
	return b.Value+float64(a.Rate*max(0, float64(d)-micros(paused)))/float64(a.Period) >= 0
}

// Earliest returns the first instant, not before now, at which a take of n from the row (value, ts)
// leaves at least floor. The caller makes sure that there is one: capacity-n >= floor.
//
// The closed formula is only a first guess. In float64 it is off by a microsecond in a few per cent
// of all cases, so Earliest searches around it with the same arithmetic that decides.
func (a *Rule) Earliest(value float64, ts, now int64, n, floor float64) int64 {
	if a.Refilled(value, ts, now)-n >= floor {
		return now
	}
	from := max(now, ts)
	need := floor + n - value
	if a.Windowed {
		base := a.Window(ts)
		k := Search(a.Window(from)-base, (EndOfTime-a.Origin)/a.Period-base, need/a.Rate,
			func(k int64) bool {
				return a.AfterWindows(value, k)-n >= floor
			})
		return Search(from, EndOfTime, float64(a.Origin+(base+k)*a.Period), func(t int64) bool {
			return a.Refilled(value, ts, t)-n >= floor
		})
	}
	return ts + Search(from-ts, EndOfTime-ts, need*float64(a.Period)/a.Rate, func(d int64) bool {
		return a.Refilled(value, ts, ts+d)-n >= floor
	})
}

// Paced spreads work that was reserved in one window over that window. run is when a debt is
// repaid, which for a window is its first instant. Paced moves it into the window by the share of
// the window's tokens that was reserved before this take of n. debt is what is owed after the take,
// as of since.
func (a *Rule) Paced(debt, n float64, since, run int64) int64 {
	if !a.Windowed {
		return run
	}
	// tokens that the windows before that one bring
	earlier := a.Rate * float64(a.Window(run)-a.Window(since)-1)
	share := max(0, debt-n-earlier) / a.Rate
	into := int64(min(share, 1) * float64(a.Period))
	return min(run+min(into, a.Period-1), EndOfTime)
}

// Search returns the smallest x in (low, high] for which ok holds, or high if there is none. ok
// must be monotone, and false at low. The search begins at guess.
func Search(low, high int64, guess float64, ok func(int64) bool) int64 {
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

// Paces reports whether another rule repays a debt at the same instants as a.
func (a *Rule) Paces(other *Rule) bool {
	return a.Windowed == other.Windowed && a.Rate == other.Rate && a.Period == other.Period &&
		(!a.Windowed || a.Origin == other.Origin)
}

// Flows returns how many tokens flow in between two instants; below 0 if to is the earlier one.
func (a *Rule) Flows(from, to int64) float64 {
	if a.Windowed {
		return float64(a.Rate * float64(a.Window(to)-a.Window(from)))
	}
	return float64(a.Rate*float64(to-from)) / float64(a.Period)
}

// SetOrigin sets the origin from the start of any window. It stores the start of the first window
// at or after the Anchor: the windows stay the same, and the numbers are small.
func (a *Rule) SetOrigin(start int64) {
	d := (start - Anchor) % a.Period
	if d < 0 {
		d += a.Period
	}
	a.Origin = Anchor + d
}

// ToFill returns how many microseconds it takes until n tokens have come.
func (a *Rule) ToFill(n float64) float64 {
	if a.Windowed {
		return math.Ceil(n/a.Rate) * float64(a.Period)
	}
	return n / a.Rate * float64(a.Period)
}
