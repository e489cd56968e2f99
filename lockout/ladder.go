package lockout

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// ladder is how one kind of subjects is locked: by two balances each. Both count microseconds, of
// which one comes in each microsecond: a failure takes the time in which it is forgotten, and so
// does a lockout. That is exact, where tokens that come in fractions are rounded.
type ladder struct {
	whose string

	failures ratelimit.Limit
	cost     float64 // of one

	// A lock is a pause of both balances, so that the memory begins to fade when it ends.
	locks      ratelimit.Limit
	room       float64 // for what is remembered, of the memory
	forget     float64 // cost of a lockout
	first, cap time.Duration
	top        int // how many lockouts must be remembered for the longest lock
}

// memory is the capacity of all locks, whatever the Config: what is remembered is what is missing
// to it, so that other numbers find it as it was. It is longer than the longest that is ever
// remembered, and small enough for each microsecond to count.
const memory float64 = 1 << 52

// newLadder makes the ladder of a kind. Everybody locks rows in the order of the limits' names,
// which is that of failures, of whatever kind, before that of locks.
func newLadder(whose string, n int, cfg Config) (*ladder, error) {
	d := &ladder{whose: whose, first: cfg.First, cap: cfg.Cap,
		forget: float64(cfg.Forget.Microseconds())}
	for d.first<<d.top < d.cap {
		d.top++
	}
	d.cost = float64(cfg.Window.Microseconds() / int64(n))
	d.room = float64(d.top+1) * d.forget
	define := func(what string, capacity float64) (ratelimit.Limit, error) {
		return ratelimit.Define(cfg.Name+"."+what+"."+whose, ratelimit.TokenBucket{
			Rate: 1, Period: time.Microsecond, Capacity: &capacity,
			MaxReserved: ratelimit.Tokens(0)})
	}
	var err error
	if d.failures, err = define("failures", float64(n)*d.cost); err != nil {
		return nil, err
	}
	d.locks, err = define("lockouts", memory)
	return d, err
}

// lasts is how long the lock lasts before which so many lockouts are remembered.
func (d *ladder) lasts(remembered int) time.Duration {
	if remembered >= d.top {
		return d.cap
	}
	return d.first << remembered
}

// remembered is how many lockouts a balance remembers.
func (d *ladder) remembered(value float64) int {
	return int(math.Ceil((memory - value) / d.forget))
}

// left is how many attempts a balance has.
func (d *ladder) left(value float64) int { return int(value / d.cost) }

func (s subject) attempt() ratelimit.Request { return s.failures.For(s.key).Count(s.cost) }

func (s subject) rows() []ratelimit.Request {
	return []ratelimit.Request{s.failures.For(s.key), s.locks.For(s.key)}
}

// lock locks a subject whose row of failures the transaction has locked. After the lock all its
// attempts are there again. What the Result has taken is the memory of it: nothing, if as many are
// remembered as matter.
func (s subject) lock(
	ctx context.Context, l *ratelimit.Limiter, tx pgx.Tx,
) (ratelimit.Result, error) {
	// who changes it has the row of failures first
	state, err := l.Value(ctx, tx, s.locks.For(s.key))
	if err != nil {
		return ratelimit.Result{}, err
	}
	before := s.remembered(state.Value)
	res := ratelimit.Result{}
	if memory-state.Value+s.forget <= s.room {
		// Reserved, as the two pauses of the last lock do not end in the same microsecond.
		if res, err = l.RateLimit(ctx, tx,
			s.locks.For(s.key).Count(s.forget).OrReserve()); err != nil {
			return res, err
		}
	}
	if err := l.Pause(ctx, tx, s.lasts(before), s.rows()...); err != nil {
		return res, err
	}
	// After the pause, which would cut the balance to today's capacity: a release with other
	// numbers is to find it full, too.
	return res, l.ResetRateLimit(ctx, tx, s.failures.For(s.key))
}

// extend begins the lock anew that a subject is in.
func (s subject) extend(ctx context.Context, l *ratelimit.Limiter, tx pgx.Tx) error {
	state, err := l.Value(ctx, tx, s.locks.For(s.key))
	if err != nil {
		return err
	}
	return l.Pause(ctx, tx, s.lasts(max(0, s.remembered(state.Value)-1)), s.rows()...)
}
