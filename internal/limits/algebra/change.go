package algebra

import "math"

// Row is a balance with the rule that is stored in it: that of its last take or reset.
type Row struct {
	Balance
	By Rule
}

// Receipt is what giving back needs to know of a take: its count, and what it left.
type Receipt struct {
	Count float64
	Left
}

// Left is the row as a take left it.
type Left struct {
	Since int64   // the time from which tokens flowed in again; 0 if nothing was taken
	Owed  float64 // below 0: what was left
	Delay int64
	Moved float64
}

// Left returns what a take that left b has left.
func (b Balance) Left() Left { return Left{b.Since(), -b.Value, b.Delay, b.Moved} }

// The changes below are those of give.go and pause.go in internal/limits/statements, each by the
// rule of the caller. A row that does not exist is full. Pauses of merged shards are in the
// statements only.

// Give gives back what is left of the tokens of a take, of which used were used, as if the take had
// been smaller. The balance stays that at its TS, and refills later. With move, the line moves up
// by what this repays of a debt.
func (a *Rule) Give(r Row, t Receipt, used float64, move bool, now int64) Row {
	if !r.Exists {
		return a.fresh(Full, now)
	}
	left := a.Unused(r.Balance, t, now) - used
	if !(left > 0) {
		return r
	}
	given := max(r.Value, min(r.By.Capacity, r.Value+left))
	if move && r.Value < 0 {
		r.Moved += -r.Value - max(0, -given)
	}
	r.Value = given
	return r
}

// Unused returns how many tokens of a take can be given back if none was used: see unused in
// give.go of internal/limits/statements.
func (a *Rule) Unused(b Balance, t Receipt, now int64) float64 {
	if !a.Windowed {
		return t.Count
	}
	at := b.Since()
	if b.Value < 0 {
		at = max(at, now)
	}
	later := float64(a.Window(at)) - float64(a.Window(t.Since)) - math.Floor(
		float64(b.Delay-t.Delay)/float64(a.Period),
	)
	switch {
	case later <= 0:
		return t.Count
	case t.Owed <= 0:
		return 0
	}
	return min(t.Count, t.Owed-(b.Moved-t.Moved)-float64(a.Rate*(later-1)))
}

// Charge takes n tokens whatever is there, ahead of all work that waits: the line moves back by
// what this adds to the debt. It refills by the rule in the row.
func (a *Rule) Charge(r Row, n float64, now int64) Row {
	if !r.Exists {
		return a.fresh(a.Capacity-n, now)
	}
	had := r.By.Refilled(r.Value, r.Since(), now)
	r.Value, r.TS = had-n, max(r.TS, now)
	r.Moved -= max(0, n-had) - max(0, -had)
	if r.PausedUntil <= now {
		r.PausedUntil = Open
	}
	return r
}

// Pause stops the time of a row for d microseconds from now on. The balance is refilled up to now
// by the rule in the row, and stays so until the pause ends. Work that waits is delayed by what
// this adds to the pause. A pause that ends later stays.
func (a *Rule) Pause(r Row, d, now int64) Row {
	end := now + d
	if !r.Exists {
		r = a.fresh(Full, now)
		r.PausedUntil, r.Delay = end, a.delayed(now, end)
		return r
	}
	r.Delay += a.delayed(max(r.Since(), now), max(r.PausedUntil, end))
	r.Value = max(r.Value, r.By.Refilled(r.Value, r.Since(), now))
	r.TS, r.PausedUntil = max(r.TS, now), max(r.PausedUntil, end)
	return r
}

// Resume ends a pause, and takes back the rest of its delay. Without a pause it changes nothing.
func (a *Rule) Resume(r Row, now int64) Row {
	switch {
	case !r.Exists:
		return a.fresh(Full, now)
	case r.PausedUntil <= now:
		return r
	}
	r.TS = max(r.TS, now)
	r.Delay -= a.delayed(r.TS, r.PausedUntil)
	r.PausedUntil = Open
	return r
}

// Reset fills a balance, whatever the rule. It alone may move TS back. A pause continues.
func (a *Rule) Reset(r Row, now int64) Row {
	if !r.Exists {
		return a.fresh(Full, now)
	}
	r.Value, r.TS, r.By = Full, now, *a
	return r
}

func (a *Rule) fresh(value float64, now int64) Row {
	return Row{Balance{Exists: true, Value: value, TS: now, PausedUntil: Open}, *a}
}

// delayed returns by how many microseconds a pause from one instant to another delays work: its
// length, or that of the windows that begin in it.
func (a *Rule) delayed(from, to int64) int64 {
	if a.Windowed {
		return a.Period * max(0, a.Window(to)-a.Window(from))
	}
	return int64(max(0, micros(to-from)))
}
