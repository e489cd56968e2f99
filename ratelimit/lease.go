package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Leases. A lease takes blocks of tokens from the row of a limit and key, each committed before any of it is handed out, and
// hands them out from memory. So all processes together never hand out more than the row has granted. That alone would not
// do: what lies in hands is missing in the row, which refills as if it was used, and with ten full hands and a full row there
// would be twice the capacity to be had at once. So tokens in hand spoil as they would have overflowed in the row:
//
// A take that has left v tokens in the row, at t0, lets its taker have at t no more in hand than
//
//	capacity - refilled(v, t0, t)
//
// which is what it took, until the row would be full again without it. With that rule
//
//	(balance of the row) + (all that is in hand, anywhere) <= capacity, at each instant,
//
// as if it all still lay in the row, and in any interval of length t no more than capacity + rate*t is handed out, over any
// number of processes. The argument: let takes leave v1 at t1, v2 at t2, ..., vk at tk, and h1, ..., hk be what is in hand of
// each at t. Write ri = refilled(vi, ti, t). The balance is rk, and hk + rk <= capacity by the rule. And hi + ri <= r(i-1):
// take i has left of r(i-1) what it did not take, so that ri + hi is at most that until it meets the capacity, and then by
// the rule no more than the capacity, which r(i-1) has met by then, too. So rk + hk + h(k-1) + ... + h2 <= r1, and
// r1 + h1 <= capacity. Takes of others than leases are takes of which nothing is in hand. A take from shards is one from each.
//
// What is given back breaks that chain: the takes after it do not know of it, and let their tokens spoil too late. So nothing is
// kept in hand for longer than a moment (kept), and given back is only what would not yet have spoilt by the time at which all
// that was taken before is in nobody's hand any more (see back). Where nothing flows in that is all of it.
//
// Time is counted from before the take was sent, on the process's own monotonic clock: so it is never less than what has passed
// for the row, as long as the two clocks run at the same speed: a machine must not go on, after a suspension that its clock has not
// counted, with what it had in hand before.

// LeaseConfig configures a [Lease]. The zero LeaseConfig uses the defaults.
type LeaseConfig struct {
	// Block is the most tokens that a lease holds, and so the most that a crash loses. Default: a
	// tenth of the capacity, or 1 if that is more.
	Block float64
}

// Lease hands out tokens of one limit and key from memory. It takes blocks of them from the
// database ahead of time, so most takes cost no round trip. Use it for the hottest paths. If each
// take may cost a round trip, use [Limiter.Autocommit]; if it belongs to writes, use
// [Limiter.RateLimit].
//
// All leases, processes and other callers together stay within the limit: tokens that a lease holds
// expire when they would have overflowed in the row. A lease learns of changes only with its next
// block, within a second. If tokens were given back or settled elsewhere, they may come on top of
// what the lease holds, by at most what flows in during that time. If the limit was paused, reset
// or given other shards, the lease hands out what it holds until then.
//
// Other callers may be denied while a lease holds tokens, but not for long: a block is what is used
// within a tenth of a second, and what is left of it after a second is given back. A caller that
// takes less than ten times a second gets each token from the database.
//
// A denial is remembered until its RetryAt. Until then takes are denied from memory, even if a
// reset, a settlement or a GiveBack has made tokens available sooner.
//
// A crash loses the tokens that the process holds or is just fetching. That is at most Block, or a
// larger take that waits, plus what its open transactions have taken. They count as used.
//
// A Lease is safe for concurrent use, and one for each process, limit and key is enough. It has no goroutine while it is idle.
type Lease struct {
	l       *Limiter
	a       *Autocommit
	request Request
	calls   []call  // the request, of one token
	most    float64 // LeaseConfig.Block
	least   float64 // that can be taken
	outer   any     // the key of contexts of InTx on the pool
	base    time.Time

	mu   sync.Mutex
	hand []*block // oldest first
	rest float64  // in hand, but for the first block
	low  float64  // with less in hand the next block is fetched
	used float64  // since the last fetch; what spoilt, too
	last int64    // when that was
	unit float64  // of the last take

	waiting []*taker
	flight  *flight // the fetch under way
	calm    int64   // until when none is made ahead
	denied  refusal

	back      []*block // to be given back
	returning []*block // being given back
	giving    bool
	timer     *time.Timer
	armed     bool

	closed bool
	busy   int           // goroutines
	quiet  chan struct{} // closed when there is none
}

// Lease makes a lease of a limit and key. The count of the request does not matter, and OrReserve,
// Within, OnCredit and Leave are refused. It does not touch the database. Blocks are fetched over
// the pool, except for a take in a transaction, which needs none of its connections. Close the
// lease before the pool.
func (l *Limiter) Lease(pool *pgxpool.Pool, request Request, cfg LeaseConfig) (*Lease, error) {
	switch {
	case pool == nil:
		return nil, errNoPool()
	case !l.made():
		return nil, errNotMade()
	}
	if request.reserve || request.credit || request.leave != 0 {
		return nil, &InvalidError{Limit: request.def.nameOf(), Field: "request", Value: plain("one with OrReserve, Within, OnCredit or Leave"),
			Want: "one without them: a lease takes tokens that exist"}
	}
	if request.def != nil && request.def.shadow {
		return nil, &InvalidError{Limit: request.def.name, Field: "limit", Value: plain("a Shadow"), Want: "a limit that is enforced: a shadow cannot be leased"}
	}
	calls, err := resolveAll(bare([]Request{request}))
	if err != nil {
		return nil, err
	}
	c := &calls[0]
	s := &Lease{
		l: l, a: l.Autocommit(pool), request: request, calls: calls,
		most: cfg.Block, least: c.capacity * smallest, outer: outerKey{pool}, base: time.Now(),
	}
	switch {
	case s.most == 0:
		s.most = min(c.capacity, max(1, c.capacity/10))
	case !(s.most > 0) || s.most > c.capacity:
		return nil, &InvalidError{Limit: c.name, Field: "LeaseConfig.Block", Value: s.most,
			Want: fmt.Sprintf("a number of tokens above 0 and at most the capacity of %v, or 0 for the default", c.capacity)}
	}
	return s, nil
}

func (d *definition) nameOf() string {
	if d == nil {
		return ""
	}
	return d.name
}

// Take takes n tokens, from memory if the lease holds as many. If not, it waits for the next block,
// in order of arrival.
//
// A denial is a [Result], not an error. The Result has no Outcomes, cannot be given back or
// settled, and its At is an estimate of the database's clock. A count above Block is taken from the
// database directly, as by [Limiter.Autocommit]. A count above the capacity, or one that is not
// above 0, is refused with an error that matches [ErrInvalid].
//
// An error of the database is returned, wrapped, to the takes that waited for it; tokens that the
// lease holds are still handed out. After an error that matches [ErrOutcomeUnknown] the block may
// have been taken, but is not handed out. If ctx ends first, its error is returned, wrapped, and
// nothing was taken; a take from memory ignores ctx.
//
// Inside an InTx on the same pool use [Lease.TakeInTx]. Take does not roll back with the
// transaction, and if it would have to wait it is refused with [ErrNested].
func (s *Lease) Take(ctx context.Context, n float64) (Result, error) {
	if s.l.observer != nil {
		return s.l.observe(ctx, []Request{s.request.Count(n)}).told(s.take(ctx, n))
	}
	return s.take(ctx, n)
}

func (s *Lease) take(ctx context.Context, n float64) (Result, error) {
	s.mu.Lock()
	now := s.now()
	if len(s.hand) > 0 && len(s.waiting) == 0 && n >= s.least {
		if b := s.hand[0]; b.draw(n, now, &s.used) {
			res := b.granted(now)
			s.unit = n
			if b.left+s.rest < s.low && s.flight == nil && now >= s.calm {
				s.fetch()
			}
			s.mu.Unlock()
			return res, nil
		}
	}
	s.mu.Unlock()
	return s.wait(ctx, n)
}

// Close gives back the tokens that the lease holds, and waits for calls in flight. Takes that wait,
// and all later ones, fail with an error that matches [ErrClosed]. Tokens that cannot be given back
// are lost: the error says why. A second Close does nothing.
func (s *Lease) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for len(s.waiting) > 0 {
		s.refuse(s.waiting[0], s.errClosed())
	}
	s.graceful(s.flight)
	s.sweep(s.now())
	blocks := s.back
	for _, b := range s.hand {
		b.gone = true
		blocks = append(blocks, b)
	}
	s.hand, s.rest, s.back = nil, 0, nil
	s.busy++
	s.mu.Unlock()

	err := s.giveBack(ctx, blocks)

	s.mu.Lock()
	s.done()
	var quiet chan struct{}
	if s.busy > 0 {
		if s.quiet == nil {
			s.quiet = make(chan struct{})
		}
		quiet = s.quiet
	}
	s.mu.Unlock()
	if quiet == nil {
		return err
	}
	select {
	case <-quiet:
	case <-ctx.Done():
		if err == nil {
			err = explain(ctx, ctx.Err(), "close the lease of", s.calls)
		}
	}
	return err
}

func (s *Lease) errClosed() error {
	return fmt.Errorf("%w: the lease of limit %q", ErrClosed, s.calls[0].name)
}

// check refuses a count that cannot be taken.
func (s *Lease) check(n float64) error {
	c := s.calls[0]
	if c.count = n; !(n > 0) {
		return &InvalidError{Limit: c.name, Field: "count", Value: n, Want: "more than 0 tokens"}
	}
	return c.checkCount()
}

// now is the lease's clock, in nanoseconds.
func (s *Lease) now() int64 {
	if s.l.clock != nil {
		return s.l.clock().UnixNano()
	}
	return int64(time.Since(s.base))
}

// before is now for what is about to be sent: the row's time, in whole microseconds, may be that much earlier.
func (s *Lease) before() int64 {
	if s.l.clock != nil {
		return s.now()
	}
	return s.now() - int64(time.Microsecond)
}

// refusal is a denial that is remembered: what the row had, when, by the database's clock and by the lease's.
type refusal struct {
	n       float64
	retryAt int64
	value   float64
	at      int64
	paused  int64 // until when; long ago if it was not
	told    int64
}

// refused is the answer to a take of n for which the row was found not to have enough. Where it is not the count that was
// denied, it is computed from the balance then.
func (s *Lease) refused(n float64, now int64) (Result, bool) {
	d := &s.denied
	if d.retryAt == 0 {
		return Result{}, false
	}
	c := &s.calls[0]
	at, retryAt := d.at+(now-d.told)/1000, d.retryAt
	if n != d.n {
		since := max(d.at, d.paused)
		retryAt = c.earliest(d.value, since, since, n, 0)
		if n > d.n {
			retryAt = max(retryAt, d.retryAt)
		}
	}
	if at >= retryAt {
		return Result{}, false
	}
	return Result{RetryAt: fromMicro(retryAt), At: fromMicro(at), Limit: c.name, Key: c.key}, true
}
