package ratelimit

import (
	"context"
	"errors"
)

// The verbs that need no protocol, over any executor.

func (l *Limiter) resetRateLimit(ctx context.Context, x executor, calls []call) error {
	resets := make([]*statement, len(calls))
	for i := range calls {
		resets[i] = l.resetOf(&calls[i])
	}
	if err := x.run(ctx, resets); err != nil {
		return explain(ctx, err, "reset", calls)
	}
	l.denials.forget(calls)
	return nil
}

func (l *Limiter) giveBack(ctx context.Context, x executor, res Result) error {
	calls, err := res.taken()
	if err != nil || len(calls) == 0 {
		return err
	}
	gives := make([]*statement, len(calls))
	for i := range calls {
		gives[i] = l.giveOf(&calls[i])
	}
	if err := x.run(ctx, gives); err != nil {
		return explain(ctx, err, "give back", calls)
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
