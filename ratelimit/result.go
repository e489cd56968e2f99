package ratelimit

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// Result is the outcome of one call, over all of its requests: all granted, or none.
//
// There are three outcomes. Granted now: OK, and both times are zero. Granted for later, with
// [Request.OrReserve]: OK, and RunAt is when the work may run. Denied: not OK, and RetryAt is when
// to retry. Both times are never set together. The zero Result is what a failed call returns: check
// the call's error first, or you report a database that is away as a denial.
//
// All times are by the database's clock.
type Result struct {
	OK bool

	// RunAt is when the debts of all reserved limits are repaid and none of them is paused. Zero
	// unless granted for later.
	RunAt time.Time

	// RetryAt is the first instant at which the same call would be granted by all of its limits if
	// nobody else came. Zero unless denied.
	RetryAt time.Time

	// At is the time of the decision: the latest one of several limits. If the row already had a
	// later time from another caller, it is that.
	At time.Time

	// Limit and Key name the limit that set RunAt or RetryAt. Empty if granted now.
	Limit, Key string

	// Outcomes has the outcome of each request, in the order of the requests. It is empty if a
	// [Lease] has decided, or if [FailOpen] has let the call through.
	Outcomes []Outcome

	id       uuid.UUID // of the Reservation; zero if nothing was taken
	recalled bool      // answered from memory: see Config.RememberDenials
	spare    bool      // decided from memory in an outage: see FailOpen
}

// Outcome is the part of one request in a [Result].
type Outcome struct {
	Limit, Key string

	// OK says that this limit alone would have granted the call. If another limit denied it,
	// nothing was taken from this one either.
	OK bool

	// Shadow says that the limit is one of those that never deny: see [Shadow].
	Shadow bool

	// Value is the balance at Result.At, after the call: negative if tokens are owed. If one shard
	// of several has granted alone, it is what this process knows of all of them; [Limiter.Value]
	// reads the database.
	Value float64

	// Capacity, Rate and Period are those of the rule that decided: Rate tokens come in each
	// Period.
	Capacity, Rate float64
	Period         time.Duration

	// WindowEnds is when the fixed window ends in which the decision was made, and the next begins.
	// Zero for a token bucket.
	WindowEnds time.Time

	RunAt   time.Time // granted ahead: when this limit's debt is repaid, and its pause over
	RetryAt time.Time // denied: when this limit would grant

	// PacedAt is RunAt, moved on within its window. All reservations of one window have the same
	// RunAt, its first instant, and would start at once. PacedAt is as far into the window as the
	// share of its tokens that was reserved before. For a token bucket, whose tokens come one by
	// one, it is RunAt. Zero unless granted for later.
	PacedAt time.Time

	// Delay is the total time by which pauses have delayed waiting work: see [State].
	Delay time.Duration

	paused int64 // the end of the pause, or algebra.Open; a Lease needs it
	call   *call // for GiveBack and Reservation
	took   took
}

// Err returns nil if the call was granted, a [*DeniedError] if it was denied, and [ErrNoDecision]
// for the zero Result.
func (r Result) Err() error {
	switch {
	case r.OK:
		return nil
	case r.RetryAt.IsZero():
		return ErrNoDecision
	}
	e := &DeniedError{Limit: r.Limit, Key: r.Key, At: r.At, RetryAt: r.RetryAt}
	for _, o := range r.Outcomes {
		if c := o.call; o.Limit == r.Limit && o.Key == r.Key && c != nil && c.Pausable() &&
			o.Value-c.Count+c.Credited() < -c.Debt {
			e.MaxReserved = c.Debt
		}
	}
	return e
}

// Decided tells whether the database has decided. It is false for a call that [FailOpen] has let
// through, or denied, in an outage.
func (r Result) Decided() bool { return !r.At.IsZero() && !r.spare }

// RetryAfter is the time from the decision until RetryAt, both by the database's clock; 0 unless
// denied.
func (r Result) RetryAfter() time.Duration { return max(0, r.RetryAt.Sub(r.At)) }

// requestsOf is how many requests a call has, up to the last one that is in these.
func requestsOf(calls []call) (n int) {
	for i := range calls {
		for _, j := range calls[i].indexes {
			n = max(n, j+1)
		}
	}
	return n
}

// grow makes room for the Outcomes of n requests.
func (r *Result) grow(n int) {
	r.Outcomes = append(r.Outcomes, make([]Outcome, max(0, n-len(r.Outcomes)))...)
}

// put records the Outcome of the requests that were merged into c.
func (r *Result) put(c *call, o Outcome) {
	for _, j := range c.indexes {
		r.Outcomes[j] = o
	}
}

// summarize makes the Result of a call over several rows: verdicts[i] is for calls[i], and all[i]
// is what it took. If all is nil, nothing was taken.
func summarize(calls []call, verdicts []algebra.Verdict, all []took) Result {
	res := Result{OK: true, Outcomes: make([]Outcome, requestsOf(calls))}
	var latest int64
	for i := range calls {
		v := &verdicts[i]
		latest, res.OK = max(latest, v.At), res.OK && v.OK
		o := calls[i].outcome(v)
		if all != nil {
			o.took = all[i]
		}
		res.put(&calls[i], o)
	}
	res.At = fromMicro(latest)
	for i := range calls {
		o := &res.Outcomes[calls[i].indexes[0]]
		switch {
		case !res.OK && o.RetryAt.After(res.RetryAt):
			res.RetryAt, res.Limit, res.Key = o.RetryAt, o.Limit, o.Key
		case res.OK && o.RunAt.After(res.RunAt):
			res.RunAt, res.Limit, res.Key = o.RunAt, o.Limit, o.Key
		}
	}
	return res
}

func (c *call) outcome(v *algebra.Verdict) Outcome {
	o := Outcome{Limit: c.Name, Key: c.Key, OK: v.OK, Shadow: c.shadow, Value: v.After.Value,
		Capacity: c.Capacity, Rate: c.Rate, Period: time.Duration(c.Period) * time.Microsecond,
		Delay:  time.Duration(v.After.Delay) * time.Microsecond,
		paused: v.After.PausedUntil, call: c}
	if c.Windowed {
		o.WindowEnds = fromMicro(min(c.WindowStart(v.At)+c.Period, algebra.EndOfTime))
	}
	o.RunAt, o.PacedAt, o.RetryAt = times(v)
	return o
}

// times returns RunAt, PacedAt and RetryAt: each zero where it has no meaning.
func times(v *algebra.Verdict) (runAt, pacedAt, retryAt time.Time) {
	switch {
	case !v.OK:
		retryAt = fromMicro(v.RetryAt)
	case v.Ahead:
		runAt, pacedAt = fromMicro(v.RunAt), fromMicro(v.PacedAt)
	}
	return runAt, pacedAt, retryAt
}

func fromMicro(us int64) time.Time { return time.UnixMicro(us).UTC() }

// newID makes a UUID of version 7 (RFC 9562) for an instant in microseconds. Its random bits need
// not be secret, only unique. Those of math/rand/v2 come from ChaCha8, seeded by the system.
//
// On Citus the last byte says where what limits without keys have granted is settled: see
// settledAt. It is settled beside the balance of a limit without shards.
func newID(now int64) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(now/1000)<<16|rand.Uint64()&0x0fff|0x7000) //nolint:gosec // wraps for no date that is
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&(1<<62-1)|1<<63)                   //nolint:gosec // see above
	return withHome(id, shard.Beside)
}

// withHome returns id with the number of a home in its last byte.
func withHome(id uuid.UUID, home int) uuid.UUID {
	last := &id[len(id)-1]
	*last = *last&^(shard.Homes-1) | byte(home&(shard.Homes-1)) //nolint:gosec // Homes is a power of two
	return id
}

// idOf returns an id for what calls have taken. On Citus, if a limit without keys has shards, it is
// chosen so that the reservation is settled on the node of the first shard.
func (l *Limiter) idOf(calls []call, all []took, now int64) uuid.UUID {
	id := newID(now)
	if !l.cfg.Citus {
		return id
	}
	for i := range calls {
		if calls[i].Key != "" || len(all[i].parts) == 0 {
			continue
		}
		if nr, ok := shard.HomeOf(calls[i].Name, all[i].parts[0].Shard); ok {
			return withHome(id, nr)
		}
	}
	return id
}
