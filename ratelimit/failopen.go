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

// FailOpen lets calls through while the database is away, for programs that would rather exceed a
// limit than be down together with their database. Everything else in this package fails closed: no
// decision is no grant.
//
//	limits := &ratelimit.FailOpen{Limiter: limiter.Coalesce(pool), For: time.Minute, Timeout: 200 * time.Millisecond}
//
// # What an outage is
//
// The database is away when it decides nothing. A call that is slow, or that fails alone, is not
// let through. An outage begins when a call fails, or waits for longer than Timeout, and these
// hold:
//
//   - no other call was decided since it began, and
//   - a probe fails: a decision that FailOpen makes itself, on a connection and a row of its own.
//     It fails if it takes longer than two seconds. It commits, and leaves nothing behind. Probes
//     are made only in doubt, and one at a time. The server, and a pooler in front of it, must have
//     a connection to spare for it: if none is free, the probe fails.
//
// So a row that somebody holds, a pool without a free connection and a statement that fails are no
// outage. Such a call gets its error, or waits until its ctx ends. If the database goes while other
// calls are being decided, the calls under way may fail with their errors. The next calls are let
// through. If Limiter neither is nor embeds an [*Autocommit] or a [*Coalesced], there are no
// probes, and only its calls count.
//
// # What is let through
//
// In an outage calls are decided from memory, by their own limits times Share. A call that is let
// through has a Result that is OK and not [Result.Decided]: nothing was taken in the database, and
// giving it back does nothing. A call that is denied has a Result like any denial, with a RetryAt
// by the clock of the process, and it is not Decided either. [Request.OrReserve], [Request.Within]
// and [Request.OnCredit] do not count: a call is let through now or not at all. A call fails with
// the database's error if it asks for more than the share could ever hold, or if 100,000 other keys
// are in memory whose balances are not full.
//
// The balances in memory begin full. So their tokens come on top of those that the database granted
// just before.
//
// Errors that match [ErrInvalid], [ErrNested] or [ErrClosed], and calls whose ctx has ended, are
// never let through.
//
// # For how long
//
// For and Most bound what is let through, from the beginning of the outage. They are not renewed
// when the database comes back for a moment, but only once it has decided calls for as long as For
// without being away in between. Calls beyond them fail with the database's error.
//
// It is safe for concurrent use. Its fields must not change once it is used.
type FailOpen struct {
	// Limiter decides while the database is not away: an [*Autocommit] or a [*Coalesced]. It has no
	// default.
	Limiter interface {
		RateLimit(ctx context.Context, requests ...Request) (Result, error)
	}

	// For is how long calls are let through, counted from the beginning of the outage. Default: a
	// minute.
	For time.Duration

	// Most is how many calls are let through in that time. Default: any number.
	Most int64

	// Timeout is how long a call waits before the database is suspected to be away. If it is not,
	// the call waits on until its ctx ends. Default: a second.
	Timeout time.Duration

	// Share is how much of each limit this process grants from memory in an outage, as a part of
	// its rate and of its capacity: above 0, and at most 1. With 1/n each, n processes keep the
	// limit together. With a number below 0 all calls are let through. Default: 1, with which each
	// process grants as much as the limit allows to all.
	Share float64

	// Allow picks the calls that may be let through: the calls of one route only, or those with
	// some errors. It is not called for errors that are never let through. Default: all.
	Allow func(ctx context.Context, err error, requests []Request) bool

	// Logger gets a message when an outage begins, when For or Most is reached, and when the
	// database decides again. Default: [slog.Default].
	Logger *slog.Logger

	health health

	mu sync.Mutex
	// when For and Most began to count; zero if they have not since they were renewed
	began  time.Time
	away   bool      // no call was decided since one was let through
	well   time.Time // since when calls are decided again, if not away
	shut   bool      // For or Most is reached
	opened int64     // since began
	total  int64
	spares spares
}

// RateLimit is that of the Limiter.
func (f *FailOpen) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	if f.Limiter == nil {
		return Result{}, &InvalidError{Field: "FailOpen.Limiter", Value: nil,
			Want: "an Autocommit or a Coalesced"}
	}
	if f.Share > 1 || f.Share != f.Share {
		return Result{}, &InvalidError{Field: "FailOpen.Share", Value: f.Share,
			Want: "above 0 and at most 1, or below 0 for no limit"}
	}
	probe, _ := f.Limiter.(prober)
	began := time.Now()
	asked, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	suspicion := time.AfterFunc(f.timeout(), func() { f.suspect(asked, began, probe, cancel) })
	res, err := f.Limiter.RateLimit(asked, requests...)
	suspicion.Stop()

	if errors.Is(context.Cause(asked), errNoAnswer) && err != nil {
		err = fmt.Errorf("ratelimit: no decision in %v: %w", f.timeout(), errNoAnswer)
	}
	switch {
	case err == nil:
		if res.Decided() && !res.recalled { // else the database may still be away
			f.decided(ctx)
		}
		return res, nil
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrNested), errors.Is(err, ErrClosed),
		ctx.Err() != nil,
		f.Allow != nil && !f.Allow(ctx, err, requests),
		!errors.Is(err, errNoAnswer) && !f.health.away(ctx, began, probe):
		return Result{}, err
	}
	return f.open(ctx, err, requests)
}

// Consume is [Limiter.Consume] of the Limiter. It returns nil, too, for a call that is let through
// in an outage.
func (f *FailOpen) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return f.RateLimit(ctx, requests...) })
}

// errNoAnswer is the cause with which suspect ends a call that waits.
var errNoAnswer = fmt.Errorf("the database decides nothing: %w", context.DeadlineExceeded)

// suspect checks from time to time whether the database is away, and then ends the waiting call.
func (f *FailOpen) suspect(
	ctx context.Context, since time.Time, probe prober, cancel context.CancelCauseFunc,
) {
	for wait := f.timeout(); ; wait = min(2*wait, max(wait, longestDoubt)) {
		now := time.Now()
		if f.health.away(ctx, since, probe) {
			cancel(errNoAnswer)
			return
		}
		since = now
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Opened is how many calls have been let through since the program began: a metric to alert on.
func (f *FailOpen) Opened() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}

// open decides a call in an outage. If it is not let through, open returns err and the reason.
func (f *FailOpen) open(ctx context.Context, err error, requests []Request) (Result, error) {
	tell := func() {}
	defer func() { tell() }() // without the lock: who writes logs may call this FailOpen
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.began.IsZero() {
		f.began = now
	}
	if !f.away {
		left := max(0, f.most()-now.Sub(f.began))
		tell = func() {
			f.logger().ErrorContext(ctx,
				"ratelimit: calls are let through, because the database decides nothing",
				"for", left, "error", err)
		}
	}
	f.away = true

	why := ""
	switch {
	case now.Sub(f.began) >= f.most():
		why =
			fmt.Sprintf("the outage began more than %v ago, or the database was not back for that long",
				f.most())
	case f.Most > 0 && f.opened >= f.Most:
		why = fmt.Sprintf("FailOpen.Most is reached: %d calls were let through", f.opened)
	}
	if why != "" {
		if !f.shut {
			f.shut = true
			first := tell
			tell = func() {
				first()
				f.logger().ErrorContext(ctx, "ratelimit: calls are no longer let through",
					"why", why, "error", err)
			}
		}
		return Result{}, fmt.Errorf("%w (no longer let through: %s)", err, why)
	}
	if f.Share >= 0 {
		res, short := f.spares.take(requests, cmp.Or(f.Share, 1), now)
		if short != nil {
			return Result{}, fmt.Errorf("%w (not let through: %w)", err, short)
		}
		if !res.OK {
			return res, nil
		}
	}
	f.opened++
	f.total++
	return Result{OK: true}, nil
}

// decided notes that the database has decided a call.
func (f *FailOpen) decided(ctx context.Context) {
	f.health.decidedAt(time.Now())
	tell := func() {}
	defer func() { tell() }()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.began.IsZero() {
		return
	}
	now := time.Now()
	if f.away {
		f.away, f.well = false, now
		after, through := now.Sub(f.began), f.opened
		tell = func() {
			f.logger().WarnContext(ctx, "ratelimit: the database decides again",
				"after", after, "through", through)
		}
	}
	// For and Most are renewed only after the database has decided calls for as long as For. One
	// that comes and goes does not renew them.
	if now.Sub(f.well) >= f.most() {
		f.began, f.shut, f.opened, f.spares = time.Time{}, false, 0, spares{}
	}
}

const (
	defaultFor       = time.Minute
	defaultSuspicion = time.Second
)

func (f *FailOpen) most() time.Duration { return cmp.Or(max(0, f.For), defaultFor) }

func (f *FailOpen) timeout() time.Duration { return cmp.Or(max(0, f.Timeout), defaultSuspicion) }

func (f *FailOpen) logger() *slog.Logger { return cmp.Or(f.Logger, slog.Default()) }
