package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// FailOpen lets calls through that the database cannot decide on, for a while: for those who would rather exceed a limit than be
// down together with their database. Everything else in this package fails closed: no decision, no OK.
//
//	limits := &ratelimit.FailOpen{Limiter: limiter.Coalesce(pool), Timeout: 200 * time.Millisecond}
//
// An outage begins with the first call that fails, and ends with the next that the database decides. In it calls are let through until
// For is over or Most of them were; all later ones fail with the database's error. A call that is let through has a Result that is
// OK and not [Result.Decided]: it took nothing, and giving it back does nothing. What is wrong by itself is never let through: an
// error that matches [ErrInvalid], [ErrNested] or [ErrClosed], and that of a ctx that has ended.
//
// It is safe for concurrent use. Its fields must not change once it is used.
type FailOpen struct {
	// Limiter decides: an [*Autocommit] or a [*Coalesced]. It has no default.
	Limiter interface {
		RateLimit(ctx context.Context, requests ...Request) (Result, error)
	}

	For     time.Duration // that an outage is open. Default: a minute.
	Most    int64         // calls that are let through in one outage. Default: unbounded.
	Timeout time.Duration // for each decision: a database that hangs is down, too. Default: that of ctx alone.

	// Allow picks what may be let through: the calls of one route, but not those of another, or only some errors. It is not asked of
	// what is wrong by itself. Default: all.
	Allow func(ctx context.Context, err error, requests []Request) bool

	// Logger is told when an outage begins, when it is closed because For or Most is reached, and when it ends. Default:
	// [slog.Default].
	Logger *slog.Logger

	mu     sync.Mutex
	began  time.Time // of the outage; zero if there is none
	shut   bool      // it is not open any more
	opened int64     // in the outage
	total  int64
}

// RateLimit is that of the Limiter.
func (f *FailOpen) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	if f.Limiter == nil {
		return Result{}, &InvalidError{Field: "FailOpen.Limiter", Value: nil, Want: "an Autocommit or a Coalesced"}
	}
	asked := ctx
	if f.Timeout > 0 {
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, f.Timeout)
		defer cancel()
	}
	res, err := f.Limiter.RateLimit(asked, requests...)
	switch {
	case err == nil:
		if res.Decided() && !res.recalled { // else the database may still be away
			f.over(ctx)
		}
		return res, nil
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrNested), errors.Is(err, ErrClosed), ctx.Err() != nil,
		f.Allow != nil && !f.Allow(ctx, err, requests):
		return Result{}, err
	}
	if why := f.open(ctx, err); why != "" {
		return Result{}, fmt.Errorf("%w (no longer let through: %s)", err, why)
	}
	return Result{OK: true}, nil
}

// Opened is how many calls have been let through since the program began: a metric to alert on.
func (f *FailOpen) Opened() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}

// open lets a call through, or says why not.
func (f *FailOpen) open(ctx context.Context, err error) (why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.began.IsZero() {
		f.began = now
		f.logger().ErrorContext(ctx, "ratelimit: calls are let through, as their limits cannot be asked", "for", f.most(), "error", err)
	}
	switch {
	case now.Sub(f.began) >= f.most():
		why = fmt.Sprintf("the limits have not been asked for %v", f.most())
	case f.Most > 0 && f.opened >= f.Most:
		why = fmt.Sprintf("%d calls were", f.opened)
	default:
		f.opened++
		f.total++
		return ""
	}
	if !f.shut {
		f.shut = true
		f.logger().ErrorContext(ctx, "ratelimit: calls are no longer let through", "why", why, "error", err)
	}
	return why
}

// over ends the outage.
func (f *FailOpen) over(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.began.IsZero() {
		return
	}
	f.logger().WarnContext(ctx, "ratelimit: limits are asked again", "after", time.Since(f.began), "through", f.opened)
	f.began, f.shut, f.opened = time.Time{}, false, 0
}

func (f *FailOpen) most() time.Duration { return cmp.Or(max(0, f.For), time.Minute) }

func (f *FailOpen) logger() *slog.Logger { return cmp.Or(f.Logger, slog.Default()) }
