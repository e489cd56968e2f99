package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Coalesced is [Autocommit] for many goroutines. Calls of RateLimit that come at the same time are
// decided together, in one statement and one commit, and each gets its own answer. If the tokens of
// a key are not enough for all, the earlier calls are granted, and the others are denied, each with
// its own RetryAt. A call never waits for a batch to fill. A Coalesced is safe for concurrent use,
// and one for each pool is enough.
//
// A call never waits for the rows of other calls. If another transaction has locked a row, the
// calls for this row wait, in order and without a connection each, and all other calls go on.
//
// All other verbs are those of Autocommit, one call at a time.
type Coalesced struct {
	*Autocommit
	lanes   []lane
	held    held
	watch   watch
	gives   gives
	seed    maphash.Seed
	outer   any           // outerKey of the pool: making it anew allocates
	waiters sync.Pool     // that are free
	waiting atomic.Int64  // calls that are not decided yet
	order   atomic.Int64  // the number of the last call that came
	overdue atomic.Int32  // overdue batches for which their lanes no longer wait
	ended   atomic.Bool   // Close no longer waits for rows that others hold
	unmade  atomic.Int32  // batches since a row was inserted
	singly  chan struct{} // a semaphore: the connections of calls that are in no batch
	crowd   chan struct{} // a semaphore: how many of the calls that may be many wait for singly
	again   sync.Mutex    // held while a verb that has failed is tried again: see single
	inLine  sync.Mutex    // held while such a verb waits in line for a row
	mu      sync.RWMutex  // held for reading to add a call, for writing by Close
	closed  atomic.Bool
	running sync.WaitGroup // calls that are not decided yet, and goroutines
}

const (
	// lanes is how many batches are under way at a time. A key has its lane, in which its calls
	// keep their order, except those that are decided alone. On Citus a key may get another lane
	// when its range becomes known: then a call may be decided before earlier ones that still wait
	// in the old lane. With more lanes each batch has fewer calls, and fewer are decided in all.
	lanes = 2

	// lanesOfKeys is lanes for engines where a batch stays on one node: see ofOneNode. Calls in the
	// same lane wait for each other.
	lanesOfKeys = 64

	// mostTogether bounds the calls of one batch, and mostWaiting the calls that wait. mostKeys
	// bounds the keys of a batch where each row is inserted by a statement of its own.
	mostTogether = 1000
	mostKeys     = 100
	mostWaiting  = 1 << 16

	// mostUnmade is for how many batches takes also insert rows, see Many.Make: the first ones, and
	// those after a batch that met a missing row.
	mostUnmade = 100

	// tripTime is how long a batch waits for the database, or for a connection of the pool.
	tripTime = 5 * time.Second

	// overdue is how long a lane waits for a batch's trip before it goes on with the next batch.
	overdue = 500 * time.Millisecond
)

// ErrOverloaded is matched by the error of a call that was refused because 65,536 others wait to be
// decided, or for their tokens to be given back.
var ErrOverloaded = errors.New("ratelimit: too many calls wait to be decided")

// ErrClosed is matched by the error of a call after Close.
var ErrClosed = errors.New("ratelimit: closed")

// Coalesce returns the verbs over a pool. RateLimit uses two connections at a time. It uses one
// more while calls wait for rows that other transactions have locked, and one more while calls wait
// for rows that others insert. With Config.Portable it decides calls of one key at a time together,
// and uses a connection for each of up to 64 keys. With Config.Citus it decides together the calls
// of all keys that Citus keeps in one of the tables into which it has divided the balances, and
// uses a connection for each of up to 63 of these. While the database takes more than half a second
// to answer, it uses up to half of the pool in addition. For limits with shards,
// and to give back tokens of callers whose context has ended, it uses up to a quarter of the pool,
// but at most 4 connections. Close it before the pool.
func (l *Limiter) Coalesce(pool *pgxpool.Pool) *Coalesced {
	c := &Coalesced{Autocommit: l.Autocommit(pool), seed: maphash.MakeSeed(), outer: outerKey{pool},
		lanes: make([]lane, lanes), waiters: sync.Pool{New: newWaiter}}
	if l.cfg.Portable {
		c.lanes = make([]lane, lanesOfKeys)
	}
	for i := range c.lanes {
		c.lanes[i].c = c
	}
	c.held.c, c.gives.c = c, c
	if pool != nil {
		c.singly = make(chan struct{}, min(4, max(1, c.connections()/4)))
		c.crowd = make(chan struct{}, cap(c.singly))
	}
	return c
}

// connections is the most connections that the pool opens.
func (c *Coalesced) connections() int32 { return c.pool.Stat().MaxConns() }

// RateLimit is [Limiter.RateLimit], committed when it returns. A call for one limit takes one round
// trip, which all calls of the batch share. A denial that was not expected takes one more. The
// first use of a key takes two more, unless other keys were first used shortly before. Calls for
// several limits, and reservations, take two.
//
// If another transaction holds a row of the call, the call waits until the row is free or ctx ends.
// If the committed balances deny the call, it is denied at once. For a limit with [Shards], a call
// that does not reserve is denied for up to 100 ms if others hold the shards with tokens.
//
// If ctx ends, or Config.Timeout is over for a ctx without a deadline, the call's tokens are given
// back. If the database is deciding the call just then, the call waits up to 50 ms for the answer.
// If there is none, its error also matches [ErrOutcomeUnknown]: if its tokens are granted later,
// they are given back, but if the connection is lost meanwhile they may stay taken. Tokens that
// cannot be given back within a minute stay taken.
//
// Errors are those of Autocommit, [ErrOverloaded], and [ErrClosed] after Close. If the database
// does not answer within 5 seconds, the calls of that batch fail, with [ErrOutcomeUnknown] if it
// may have committed. An error of the database goes to all calls of a batch, or only to those that
// have caused it, if these are known.
func (c *Coalesced) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	o := c.l.observe(ctx, requests)
	calls, err := resolveAll(requests)
	if err != nil {
		return o.told(Result{}, err)
	}
	switch {
	case c.err != nil:
		return o.told(Result{}, c.err)
	case ctx.Value(c.outer) != nil:
		return o.told(Result{}, errNested)
	case ctx.Err() != nil:
		return o.told(Result{}, explain(ctx, ctx.Err(), "take", calls))
	}
	var began time.Time
	if len(calls) > 1 { // there may be shadows, which have what is left of the time
		began = time.Now()
	}
	return o.told(beside(calls, true, func(calls []call) (Result, error) {
		spent := time.Duration(0)
		if !began.IsZero() {
			spent = time.Since(began)
		}
		return c.rateLimit(ctx, o, calls, spent)
	}))
}

// rateLimit decides calls, spent after the caller has called.
func (c *Coalesced) rateLimit(
	ctx context.Context, o *observation, calls []call, spent time.Duration,
) (Result, error) {
	if res, ok := c.l.recall(calls); ok && !c.closed.Load() {
		return res, nil
	}
	w := c.waiters.Get().(*waiter)
	w.calls = calls
	w.state.Store(queued)
	if err := c.add(w); err != nil {
		return Result{}, explain(ctx, err, "take", calls)
	}
	late := w.wait(ctx, c.l, spent)
	if late != nil {
		switch w.leave() {
		case left:
			return Result{}, explain(ctx, late, "take", calls)
		case taken:
			return Result{}, explain(ctx, errLeftEarly(late), "take", calls)
		}
	}
	defer c.decided()
	res, err := w.result(ctx)
	if late != nil && err == nil && res.OK {
		c.gives.add(res)
		res, err = Result{}, explain(ctx, late, "take", calls)
	}
	if o != nil {
		o.e.Trips, o.e.Together = o.e.Trips+w.trips, max(o.e.Together, w.together)
	}
	if late == nil && !w.spent {
		c.free(w)
	}
	return res, err
}

// Consume is [Limiter.Consume], decided together with other calls and committed when it returns.
func (c *Coalesced) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return c.RateLimit(ctx, requests...) })
}

// Wait is [Autocommit.Wait]; its reservation is decided together with other calls.
func (c *Coalesced) Wait(ctx context.Context, requests ...Request) (Result, error) {
	return wait(ctx, c, requests)
}

// Close waits until the calls that were made before it are decided. Later calls fail with
// [ErrClosed]. Calls that still wait for rows that other transactions have locked fail with
// ErrClosed after 5 seconds. Close waits for the database as long as those calls do. It also waits
// until the tokens of callers whose context has ended are given back, for 5 seconds. What is not
// given back by then stays taken.
func (c *Coalesced) Close() {
	c.mu.Lock()
	c.closed.Store(true)
	c.mu.Unlock()
	t := time.AfterFunc(tripTime, func() {
		c.ended.Store(true)
		c.held.tick()
	})
	c.running.Wait()
	t.Stop()
}

// errLeftEarly is the error of a call whose context ended while the database was deciding on it.
func errLeftEarly(ended error) error {
	return fmt.Errorf("%w: the database had not answered when the context ended; "+
		"what it grants will be given back: %w", ErrOutcomeUnknown, ended)
}

var errClosedCoalesced = fmt.Errorf("%w: Close was called on the Coalesced", ErrClosed)

func (c *Coalesced) add(w *waiter) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed.Load() {
		return errClosedCoalesced
	}
	if c.waiting.Add(1) > mostWaiting {
		c.waiting.Add(-1)
		return fmt.Errorf("%w: %d already do; retry later, or make fewer calls at once",
			ErrOverloaded, mostWaiting)
	}
	c.running.Add(1)
	w.order = c.order.Add(1)
	if !c.held.join(w) {
		c.lane(w).add(w)
	}
	return nil
}

// decided ends what add has begun.
func (c *Coalesced) decided() {
	c.waiting.Add(-1)
	c.running.Done()
}

// lane returns the lane of the call's key. All calls of several limits use the first lane: they
// often share a limit. On Citus a range of hashes has its lane, in which its calls come together.
func (c *Coalesced) lane(w *waiter) *lane {
	key := w.calls[0].Key
	if len(w.calls) > 1 {
		return &c.lanes[0]
	}
	if nr, known := c.l.ranges.find(key); known {
		return &c.lanes[1+nr%(len(c.lanes)-1)]
	}
	return &c.lanes[maphash.String(c.seed, key)%uint64(len(c.lanes))]
}
