package ratelimit

import (
	"context"
	"slices"
	"time"
)

// Observer gets every decision and what it cost: see Config.Observer. Packages observe and otelweir
// have observers for log/slog and OpenTelemetry.
//
// Its methods are called in the caller's goroutine, with its ctx, just before the call returns.
// They must be quick and safe for concurrent use, and must not change their arguments. Names of
// limits are few, but keys are many and often personal data: do not use keys as labels of a metric.
type Observer interface {
	// Decided gets every call of RateLimit, in a transaction or without, coalesced or not, also
	// those that Wait makes, and every take of a lease. It gets failed calls, too. In a transaction
	// it comes before COMMIT: what is granted may yet be rolled back, and be granted again when the
	// transaction runs again. For RateLimitMany there is one event for all calls together.
	Decided(ctx context.Context, e DecidedEvent)

	// Transacted gets every InTx and InSQLTx, once it has ended.
	Transacted(ctx context.Context, e TransactedEvent)
}

// DecidedEvent is a call of RateLimit.
type DecidedEvent struct {
	Requests []Request // as they were made
	Result   Result    // zero if there is an error
	Err      error

	Began time.Time // by the process's clock
	Took  time.Duration

	// Trips is the number of round trips to the database, without COMMIT: 0 if it was answered from
	// memory. A coalesced call shares them with the calls that were decided with it: Together is
	// the number of these calls, this one included. Otherwise Together is 1.
	Trips, Together int
}

// TransactedEvent is a call of [Limiter.InTx] or [Limiter.InSQLTx].
type TransactedEvent struct {
	Attempts int           // runs of the callback: 1 if nothing conflicted
	Queued   time.Duration // of Took, waited in the queue of a contended key
	Paused   time.Duration // of Took, waited between attempts
	Err      error         // what InTx returned

	Began time.Time // by the process's clock
	Took  time.Duration
}

// observation is a call on its way to the Observer. Without an Observer it is nil, and its methods
// do nothing.
type observation struct {
	ctx context.Context
	to  Observer
	e   DecidedEvent
}

func (l *Limiter) observe(ctx context.Context, requests []Request) *observation {
	if l.cfg.Observer == nil {
		return nil
	}
	return &observation{ctx, l.cfg.Observer,
		DecidedEvent{Requests: slices.Clone(requests), Began: time.Now(), Together: 1}}
}

// told reports the end of the call to the Observer, and returns its arguments.
func (o *observation) told(res Result, err error) (Result, error) {
	if o != nil {
		o.e.Result, o.e.Err, o.e.Took = res, err, time.Since(o.e.Began)
		o.to.Decided(o.ctx, o.e)
	}
	return res, err
}

// counting returns x, with its round trips counted.
func (o *observation) counting(x executor) executor {
	if o == nil {
		return x
	}
	return x.counting(&o.e.Trips)
}
