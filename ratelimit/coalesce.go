package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Coalesced is [Autocommit] for many goroutines: calls of RateLimit that come at the same time are decided together, in one
// statement and one commit, and each gets its own answer. Of those for the same limit and key the earlier are granted, and the
// rest is denied, each with its own RetryAt. A call that finds nobody else does not wait for others to come. It is safe for
// concurrent use, and one for each pool is enough.
//
// All other verbs are those of Autocommit, one call at a time.
type Coalesced struct {
	*Autocommit
	lanes   [lanes]lane
	asides  asides
	seed    maphash.Seed
	waiting atomic.Int64  // calls that are not decided yet
	singly  chan struct{} // held by who decides calls one by one
	mu      sync.RWMutex  // held for reading by who adds a call, for writing by Close
	closed  bool
	running sync.WaitGroup
}

const (
	// lanes is how many transactions are under way at a time. A key has its lane, in which its callers keep their order. More
	// of them would have fewer calls each, and decide fewer in all.
	lanes = 2

	// mostSingle is how many decide calls one by one.
	mostSingle = 4

	// mostTogether bounds the calls of one transaction, and mostWaiting those that wait for theirs.
	mostTogether = 1000
	mostWaiting  = 1 << 16
)

// ErrOverloaded is matched by the error of a call that was not made, as 65,536 others wait to be decided.
var ErrOverloaded = errors.New("ratelimit: too many calls wait to be decided")

// ErrClosed is matched by the error of a call to what was closed.
var ErrClosed = errors.New("ratelimit: closed")

// Coalesce returns the verbs over a pool, of which RateLimit holds two connections at a time, and more only while others hold
// rows that it wants, or make them, and for calls that it decides one by one. It is to be closed, before the pool.
func (l *Limiter) Coalesce(pool *pgxpool.Pool) *Coalesced {
	c := &Coalesced{Autocommit: l.Autocommit(pool), seed: maphash.MakeSeed(), singly: make(chan struct{}, mostSingle)}
	for i := range c.lanes {
		c.lanes[i].c = c
	}
	return c
}

// RateLimit is [Limiter.RateLimit], committed when it returns. One limit takes one round trip, for all that are granted or
// denied together, and three if that was not foreseen. Several limits in a call take two.
//
// A ctx without a deadline ends after Config.Timeout.
//
// If ctx ends, what the call has taken by then is given back. Errors are those of Autocommit, [ErrOverloaded], and [ErrClosed]
// after Close. An error of the database is that of all who were decided together, but for one that only some of them have
// caused.
func (c *Coalesced) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	o := c.l.observe(ctx, requests)
	calls, err := resolveAll(requests)
	if err != nil {
		return o.told(Result{}, err)
	}
	switch {
	case c.pool == nil:
		return o.told(Result{}, errNoPool())
	case !c.l.made():
		return o.told(Result{}, errNotMade())
	case nested(ctx, c.pool):
		return o.told(Result{}, errNested())
	case ctx.Err() != nil:
		return o.told(Result{}, explain(ctx, ctx.Err(), "take", calls))
	}
	return o.told(beside(calls, len(requests), true, func(calls []call) (Result, error) { return c.rateLimit(ctx, o, calls, len(requests)) }))
}

func (c *Coalesced) rateLimit(ctx context.Context, o *observation, calls []call, requests int) (Result, error) {
	if c.l.remember {
		if res, ok := c.l.denials.answer(calls, requests, c.l.clock); ok {
			return res, nil
		}
		c.l.denials.watch(calls)
	}
	var res Result
	err := c.l.inTime(ctx, func(ctx context.Context) (err error) {
		res, err = c.queued(ctx, o, calls, requests)
		return err
	})
	return res, err
}

func (c *Coalesced) queued(ctx context.Context, o *observation, calls []call, requests int) (Result, error) {
	w := waiters.Get().(*waiter)
	w.calls, w.requests = calls, requests
	w.state.Store(queued)
	if err := c.add(w); err != nil {
		return Result{}, explain(ctx, err, "take", calls)
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if w.leave() {
			return Result{}, explain(ctx, ctx.Err(), "take", calls)
		}
		<-w.done
	}
	c.waiting.Add(-1)
	res, err := w.result(ctx)
	if o != nil {
		o.e.Trips, o.e.Together = o.e.Trips+w.trips, max(o.e.Together, w.together)
	}
	w.free()
	return res, err
}

// Wait is [Autocommit.Wait], of which the reservation is decided together with others.
func (c *Coalesced) Wait(ctx context.Context, requests ...Request) (Result, error) {
	return wait(ctx, c, requests)
}

// Close waits until the calls that were made before it are decided. Later ones fail with [ErrClosed].
func (c *Coalesced) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}

func (c *Coalesced) add(w *waiter) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return fmt.Errorf("%w: the Coalesced", ErrClosed)
	}
	if c.waiting.Add(1) > mostWaiting {
		c.waiting.Add(-1)
		return fmt.Errorf("%w: %d", ErrOverloaded, mostWaiting)
	}
	c.lane(w).add(w)
	return nil
}

// lane is that of the key. Those who ask for several limits often share one of them, and have one lane together.
func (c *Coalesced) lane(w *waiter) *lane {
	if n := c.asides.lane(w.calls); n != nil {
		return n
	}
	if len(w.calls) > 1 {
		return &c.lanes[0]
	}
	return &c.lanes[maphash.String(c.seed, w.calls[0].key)%lanes]
}
