package algebra

import "math"

// Balance is a row as it was read, without the rule that is stored in it.
type Balance struct {
	Exists      bool
	Value       float64
	TS          int64
	PausedUntil int64   // or Open
	Delay       int64   // by how many microseconds pauses have delayed waiting work in total
	Moved       float64 // by how many tokens waiting work has moved up in total
}

// Open is the PausedUntil of a balance that is not paused.
const Open = math.MinInt64

// Closed is the Value of a row of a former layout. It never refills.
var Closed = math.Inf(-1)

// IsClosed reports whether the row belongs to a former layout of its limit.
func (b *Balance) IsClosed() bool { return math.IsInf(b.Value, -1) }

// Since is the instant from which tokens flow in again: TS, or the end of the pause.
func (b Balance) Since() int64 { return max(b.TS, b.PausedUntil) }

// At returns the balance refilled up to now. Its TS never moves back, and a pause that is over is
// removed.
func (a *Rule) At(b Balance, now int64) Balance {
	if !b.Exists {
		return Balance{Exists: true, Value: a.Capacity, TS: now, PausedUntil: Open}
	}
	b.Value, b.TS = a.Refilled(b.Value, b.Since(), now), max(b.TS, now)
	if b.PausedUntil <= now {
		b.PausedUntil = Open
	}
	return b
}

// And adds up two shards. A pause or a delay of a limit applies to all of its shards, so the later
// one counts.
func (b Balance) And(s Balance) Balance {
	b.Value += s.Value
	b.Moved += s.Moved
	b.TS = max(b.TS, s.TS)
	b.PausedUntil = max(b.PausedUntil, s.PausedUntil)
	b.Delay = max(b.Delay, s.Delay)
	return b
}
