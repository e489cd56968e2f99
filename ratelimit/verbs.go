package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// The verbs that do not decide, over any executor.

func (l *Limiter) resetRateLimit(ctx context.Context, x executor, calls []call) error {
	done, err := l.eachRow(ctx, x, calls,
		func(c *call, _ *pausing) *statement { return l.resetOf(c) }, nil)
	var mend []*statement
	for _, s := range done {
		// The only row of the limit was closed by hand. Nothing but a reset opens it again.
		if s.closed() {
			full := algebra.Balance{Value: algebra.Full, PausedUntil: algebra.Open}
			mend = append(mend, l.put(s.c, full))
		}
	}
	if len(mend) > 0 {
		err = x.run(ctx, mend)
	}
	return l.changed(ctx, x, "reset", calls, done, err)
}

func (l *Limiter) resetKey(ctx context.Context, x executor, key string) error {
	sql := l.sql.ResetKey
	if l.cfg.Portable {
		sql = l.sql.ResetKeyHere
	}
	for range 2 { // once more for rows that came while it waited for others, as of a change of shards
		reset := &statement{sql: sql, args: []any{key, float64(algebra.Full), l.now()}, once: new(bool)}
		if err := x.run(ctx, []*statement{reset}); err != nil {
			// without the key: errors of the database are logged and traced
			return fmt.Errorf("ratelimit: reset all limits of a key: %w", hint(ended(ctx, err)))
		}
		x.ends = true
	}
	freed(x, func() { l.denials.ForgetKey(key) })
	return nil
}

// mostPaused keeps a mistaken unit from closing a limit for good.
const mostPaused = 366 * 24 * time.Hour

func checkPause(d time.Duration) error {
	if d <= 0 || d > mostPaused {
		return &InvalidError{Field: "duration of the pause", Value: d,
			Want: "one above 0 and at most 366 days"}
	}
	return nil
}

func (l *Limiter) pause(ctx context.Context, x executor, d time.Duration, calls []call) error {
	us := int64((d + time.Microsecond - 1) / time.Microsecond)
	done, err := l.eachRow(ctx, x, calls,
		func(c *call, at *pausing) *statement { return l.pauseOf(c, us, at) },
		func(c *call, at *pausing) []*statement { return l.closedOf(c, l.sql.PauseClosed, at, us) })
	return l.changed(ctx, x, "pause", calls, done, err)
}

func (l *Limiter) resume(ctx context.Context, x executor, calls []call) error {
	done, err := l.eachRow(ctx, x, calls, l.resumeOf,
		func(c *call, at *pausing) []*statement {
			return l.closedOf(c, l.sql.ResumeClosed, at, at.since)
		})
	return l.changed(ctx, x, "resume", calls, done, err)
}

func (l *Limiter) giveBack(ctx context.Context, x executor, rows []change) error {
	return l.returns(ctx, x, "give back", rows, l.undoOf)
}

// taken returns what gives back all that a Result says was taken, in the order of the rows; nothing
// for a denial.
func (r Result) taken() ([]change, error) {
	if err := r.Err(); errors.Is(err, ErrNoDecision) {
		return nil, err
	}
	if !r.OK || !r.Decided() {
		return nil, nil
	}
	var rows []change
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.call != nil && o.took.Since != 0 && o.call.indexes[0] == i {
			rows = append(rows, o.changes()...)
		}
	}
	if len(rows) == 0 && !slices.ContainsFunc(r.Outcomes, func(o Outcome) bool {
		return o.Shadow
	}) {
		return nil, &InvalidError{Field: "Result", Value: plain("one that took nothing"),
			Want: "the Result that RateLimit returned, not one of a check, nor a copy"}
	}
	sortChanges(rows)
	return rows, nil
}

func (l *Limiter) value(ctx context.Context, x executor, calls []call) (State, error) {
	seen, err := l.peek(ctx, x, calls)
	if err != nil {
		return State{}, err
	}
	return calls[0].state(seen[0].Sum(&calls[0].Rule, seen[0].At)), nil
}
