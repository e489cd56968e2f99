package ratelimit

import (
	"context"
	"errors"
	"time"
)

// The verbs that need no protocol, over any executor.

func (l *Limiter) resetRateLimit(ctx context.Context, x executor, calls []call) error {
	return l.each(ctx, x, "reset", calls, l.resetOf)
}

func (l *Limiter) pause(ctx context.Context, x executor, d time.Duration, calls []call) error {
	us := int64((d + time.Microsecond - 1) / time.Microsecond)
	return l.each(ctx, x, "pause", calls, func(c *call) *statement { return l.pauseOf(c, us) })
}

func (l *Limiter) resume(ctx context.Context, x executor, calls []call) error {
	return l.each(ctx, x, "resume", calls, l.resumeOf)
}

func (l *Limiter) giveBack(ctx context.Context, x executor, res Result) error {
	calls, err := res.taken()
	if err != nil || len(calls) == 0 {
		return err
	}
	return l.each(ctx, x, "give back", calls, l.undoOf)
}

// each runs one statement for each of the calls. Whatever was known of denials is out of date then.
func (l *Limiter) each(ctx context.Context, x executor, verb string, calls []call, of func(*call) *statement) error {
	statements := make([]*statement, len(calls))
	for i := range calls {
		statements[i] = of(&calls[i])
	}
	if err := x.run(ctx, statements); err != nil {
		return explain(ctx, err, verb, calls)
	}
	l.denials.forget(calls)
	return nil
}

// taken is what a Result says was taken: each row once, in order. Nothing, for a denial.
func (r Result) taken() ([]call, error) {
	if err := r.Err(); errors.Is(err, ErrNoDecision) {
		return nil, err
	}
	if !r.OK {
		return nil, nil
	}
	var calls []call
	for i := range r.Outcomes {
		if c := r.Outcomes[i].call; c.taken != 0 && c.indexes[0] == i {
			calls = append(calls, c)
		}
	}
	if len(calls) == 0 {
		return nil, &InvalidError{Field: "Result", Value: plain("one that took nothing"),
			Want: "the one that RateLimit returned; not that of a check, nor a copy by way of JSON or by hand"}
	}
	sortCalls(calls)
	return calls, nil
}

func (l *Limiter) value(ctx context.Context, x executor, calls []call) (State, error) {
	look := []*statement{l.lookOf(&calls[0])}
	if err := x.run(ctx, look); err != nil {
		return State{}, explain(ctx, err, "look at", calls)
	}
	c := &calls[0]
	return c.state(c.at(look[0].balance(), look[0].at.UnixMicro())), nil
}
