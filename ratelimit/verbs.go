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
	if err := res.Err(); errors.Is(err, ErrNoDecision) {
		return err
	}
	if !res.OK {
		return nil
	}
	calls := res.calls()
	if len(calls) == 0 {
		return &InvalidError{Field: "Result", Value: plain("one that says nothing of what was taken"), Want: "the one that RateLimit returned, not a copy by way of JSON or by hand"}
	}
	gives := make([]*statement, len(calls))
	for i := range calls {
		gives[i] = l.giveOf(&calls[i], res.At)
	}
	if err := x.run(ctx, gives); err != nil {
		return explain(ctx, err, "give back", calls)
	}
	l.denials.forget(calls)
	return nil
}

// calls are what a Result was made of, each once and in order of their rows.
func (r Result) calls() []call {
	var calls []call
	for i := range r.Outcomes {
		if c := r.Outcomes[i].call; len(c.indexes) > 0 && c.indexes[0] == i {
			calls = append(calls, c)
		}
	}
	sortCalls(calls)
	return calls
}

func (l *Limiter) value(ctx context.Context, x executor, calls []call) (State, error) {
	look := []*statement{l.lookOf(&calls[0])}
	if err := x.run(ctx, look); err != nil {
		return State{}, explain(ctx, err, "look at", calls)
	}
	c := &calls[0]
	return c.state(c.at(look[0].balance(), look[0].at.UnixMicro())), nil
}
