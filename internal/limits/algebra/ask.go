package algebra

// Ask is a request for tokens of one balance.
type Ask struct {
	Rule
	Count float64
	Ahead

	// the most tokens that it should reserve in one of several shards; 0: no bound
	Most float64
}

// Ahead is how far ahead of its tokens a call may be granted.
type Ahead struct {
	Reserve bool
	Bounded bool  // by Within
	Within  int64 // the most microseconds from the decision until it may run
	Credit  bool  // it need not wait for its own tokens
	Leave   float64
	// of a batch: what all its calls except the last take. See ratelimit.Limiter.RateLimitMany.
	Before float64
}

// Pausable reports whether the call may be granted for later, and so also during a pause.
func (a *Ahead) Pausable() bool { return a.Reserve && (!a.Bounded || a.Within > 0) }

// Least is the lowest balance that the take may leave. No call may owe more than 2^40 times its
// count: in a deeper debt float64 would round the count away, and the call would get its tokens for
// nothing.
func (a *Ask) Least() float64 {
	least := a.Floor(a.Pausable()) - a.Credited() + a.Leave
	if n := a.Count - a.Before; a.Reserve && n > 0 {
		least = max(least, -n/Smallest)
	}
	return least
}

// Credited is the part of the count that the call does not wait for, and later callers do. In a
// batch each call waits for the calls before it, so it is only what the last call takes.
func (a *Ask) Credited() float64 {
	if a.Credit {
		return a.Count - a.Before
	}
	return 0
}

// Demand is the lowest balance that grants the call.
func (a *Ask) Demand() float64 {
	least := a.Least()
	if a.Within > 0 {
		least = max(least, -a.Comes(a.Within)-a.Credited())
	}
	return a.Count + least
}

// Grants reports whether a balance that was refilled up to now grants the call, and returns the
// balance after it.
func (a *Ask) Grants(b Balance) (after Balance, ok bool) {
	after = b
	after.Value -= a.Count
	switch {
	case !(after.Value >= a.Least()):
		return after, false
	case !a.Pausable():
		return after, after.PausedUntil == Open
	}
	line := after // without what is taken on credit, it has to reach 0 before the work may run
	line.Value += a.Credited()
	return after, !a.Bounded || a.repaid(line, a.Within)
}

// Verdict is what an Ask meets.
type Verdict struct {
	OK    bool    // granted, at once or ahead
	Ahead bool    // granted ahead of time: RunAt and PacedAt are set
	At    int64   // the clock when it was decided
	After Balance // the balance refilled up to now, and after the take if it is granted

	Before Balance // the balance refilled up to now; not set by Granted

	RunAt   int64 // when the debt is repaid, and a pause over
	PacedAt int64 // RunAt, moved on within its window
	RetryAt int64 // denied: the first instant at which the same request would be granted
}

// Decide decides as the statements that take and look do together. It computes the RetryAt from the
// row as it is stored, as the take at that time will do. From a balance refilled up to now it would
// round differently.
func (a *Ask) Decide(b Balance, now int64) Verdict {
	before := a.At(b, now)
	if after, ok := a.Grants(before); ok {
		v := a.Granted(after)
		v.At, v.Before = now, before
		return v
	}
	if a.Within > 0 {
		guess := float64(max(now, b.Since())) + (a.Demand()-b.Value)*float64(a.Period)/a.Rate
		at := Search(now, EndOfTime, guess, func(t int64) bool {
			_, ok := a.Grants(a.At(b, t))
			return ok
		})
		return Verdict{At: now, Before: before, After: before, RetryAt: at}
	}
	from := now
	if !a.Pausable() {
		from = max(now, b.PausedUntil)
	}
	return Verdict{At: now, Before: before, After: before,
		RetryAt: a.Earliest(b.Value, b.Since(), from, a.Count, a.Least())}
}

// Granted returns the Verdict for a take that has left b.
func (a *Ask) Granted(b Balance) Verdict {
	v := Verdict{OK: true, At: b.TS, After: b}
	line := b.Value + a.Credited()
	switch since := b.Since(); {
	case line < 0:
		v.Ahead, v.RunAt = true, a.Earliest(line, since, since, 0, 0)
		v.PacedAt = a.Paced(-line, a.Count-a.Credited(), since, v.RunAt)
	case b.PausedUntil != Open:
		v.Ahead, v.RunAt, v.PacedAt = true, b.PausedUntil, b.PausedUntil
	}
	return v
}

// WaitFor makes a grant wait for what another shard has granted as well.
func (v *Verdict) WaitFor(part Verdict) {
	switch {
	case !part.Ahead:
	case !v.Ahead:
		v.Ahead, v.RunAt, v.PacedAt = true, part.RunAt, part.PacedAt
	default:
		v.RunAt, v.PacedAt = max(v.RunAt, part.RunAt), max(v.PacedAt, part.PacedAt)
	}
}

// AllOrNone reports whether all are granted. If not, none takes anything, and each keeps its
// balance.
func AllOrNone(verdicts []Verdict) bool {
	for i := range verdicts {
		if verdicts[i].OK {
			continue
		}
		for i := range verdicts {
			v := &verdicts[i]
			v.After, v.Ahead = v.Before, false
		}
		return false
	}
	return true
}
