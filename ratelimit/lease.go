package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/inhand"
)

// A lease takes blocks of tokens from the row of a limit and key, and hands them out from memory once
// the take of the block is committed. Package internal/limits/inhand says how much of a block may be
// handed out, and proves that all processes together stay within the limit.

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
// A denial is remembered until its RetryAt, for a second at most. Until then takes are denied from
// memory, even if a reset, a Resume, a settlement or a GiveBack has made tokens available sooner.
//
// A crash loses the tokens that the process holds or is just fetching. That is at most Block, or a
// larger take that waits, plus what its open transactions have taken. They count as used.
//
// A Lease is safe for concurrent use, and one for each process, limit and key is enough. It has no
// goroutine while it is idle.
type Lease struct {
	l       *Limiter
	a       *Autocommit
	request Request
	calls   []call  // the request, of one token
	most    float64 // LeaseConfig.Block
	least   float64 // that can be taken
	base    time.Time

	mu   sync.Mutex
	hand []*block // oldest first
	rest float64  // what all blocks but the first have left
	low  float64  // with less than this the next block is fetched
	used float64  // tokens that were taken or have expired since the last fetch
	last int64    // when the last fetch was
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
	lost   error         // why tokens were not given back after that
	busy   int           // goroutines
	quiet  chan struct{} // closed when there is none
}

// Lease makes a lease of a limit and key. The count of the request does not matter, and OrReserve,
// Within, OnCredit and Leave are refused. It does not touch the database. Blocks are fetched over
// the pool, except for a take in a transaction, which needs none of its connections. Close the
// lease before the pool.
func (l *Limiter) Lease(pool *pgxpool.Pool, request Request, cfg LeaseConfig) (*Lease, error) {
	a := l.Autocommit(pool)
	if a.err != nil {
		return nil, a.err
	}
	if request.reserve || request.credit || request.leave != 0 {
		return nil, &InvalidError{Limit: request.Limit().Name(), Field: "request",
			Value: plain("one with OrReserve, Within, OnCredit or Leave"),
			Want:  "one without them: a lease takes tokens that exist"}
	}
	if request.def != nil && request.def.shadow {
		return nil, &InvalidError{Limit: request.def.name, Field: "limit", Value: plain("a Shadow"),
			Want: "a limit that is enforced: a shadow cannot be leased"}
	}
	calls, err := resolveAll(bare([]Request{request}))
	if err != nil {
		return nil, err
	}
	c := &calls[0]
	s := &Lease{
		l: l, a: a, request: request, calls: calls,
		most: cfg.Block, least: c.Capacity * algebra.Smallest,
		base: time.Now(),
	}
	switch {
	case s.most == 0:
		s.most = min(c.Capacity, max(1, c.Capacity/10))
	case !(s.most > 0) || s.most > c.Capacity:
		return nil, &InvalidError{Limit: c.Name, Field: "LeaseConfig.Block", Value: s.most,
			Want: fmt.Sprintf("a number of tokens above 0 and at most the capacity of %v, or 0 for the default",
				c.Capacity)}
	}
	return s, nil
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
// nothing was taken; a take from memory ignores ctx. A take that waits with a ctx without a
// deadline fails after Config.Timeout.
//
// Inside an InTx on the same pool use [Lease.TakeInTx]. Take does not roll back with the
// transaction, and if it would have to wait it is refused with [ErrNested].
func (s *Lease) Take(ctx context.Context, n float64) (Result, error) {
	if s.l.cfg.Observer != nil {
		return s.l.observe(ctx, []Request{s.request.Count(n)}).told(s.take(ctx, n))
	}
	return s.take(ctx, n)
}

func (s *Lease) take(ctx context.Context, n float64) (Result, error) {
	s.mu.Lock()
	now := s.now()
	if len(s.hand) > 0 && len(s.waiting) == 0 && n >= s.least {
		if b := s.hand[0]; b.Draw(n, now, &s.used) {
			res := b.granted(now)
			s.unit = n
			if b.Left+s.rest < s.low && s.flight == nil && now >= s.calm {
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
// and all later ones, fail with an error that matches [ErrClosed]. A second Close does nothing.
//
// Giving a block back may take half a second at most, because later its tokens could exceed the
// limit. Tokens that are not given back by then count as used, and Close returns an error that says
// why. If the database was too slow, it matches [context.DeadlineExceeded]. The lease is closed all
// the same, so most programs should only log the error.
func (s *Lease) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for len(s.waiting) > 0 {
		s.answer(s.waiting[0], Result{}, s.errClosed())
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
	defer s.mu.Unlock()
	s.done()
	if s.busy > 0 {
		if s.quiet == nil {
			s.quiet = make(chan struct{})
		}
		quiet := s.quiet
		s.mu.Unlock()
		select {
		case <-quiet:
		case <-ctx.Done():
			if err == nil {
				err = explain(ctx, ctx.Err(), "close the lease of", s.calls)
			}
		}
		s.mu.Lock()
	}
	err, s.lost = errors.Join(err, s.lost), nil
	return err
}

func (s *Lease) errClosed() error {
	return fmt.Errorf("%w: Close was called on the lease of limit %q", ErrClosed, s.calls[0].Name)
}

// check refuses a count that cannot be taken.
func (s *Lease) check(n float64) error {
	c := s.calls[0]
	if c.Count = n; !(n > 0) {
		return &InvalidError{Limit: c.Name, Field: "count", Value: n, Want: "more than 0 tokens"}
	}
	return c.checkCount()
}

// now is the lease's clock, in nanoseconds.
func (s *Lease) now() int64 {
	if s.l.cfg.Clock != nil {
		return s.l.cfg.Clock().UnixNano()
	}
	return int64(time.Since(s.base))
}

// before is the time of what is about to be sent. The row counts whole microseconds, so its time
// may be one microsecond earlier.
func (s *Lease) before() int64 {
	if s.l.cfg.Clock != nil {
		return s.now()
	}
	return s.now() - int64(time.Microsecond)
}

// refusal is a denial that is remembered: what the row had, and when, by the clocks of the database
// and of the lease.
type refusal struct {
	n       float64
	retryAt int64
	value   float64
	at      int64
	paused  int64 // until when; long ago if it was not
	told    int64
}

// refused is the answer to a take of n if the row is known to have too few tokens. For another
// count than the one that was denied, it is computed from the balance at that time.
func (s *Lease) refused(n float64, now int64) (Result, bool) {
	d := &s.denied
	if d.retryAt == 0 || now-d.told >= int64(inhand.Kept) { // it may have been reset, or resumed
		return Result{}, false
	}
	c := &s.calls[0]
	at, retryAt := d.at+(now-d.told)/1000, d.retryAt
	if n != d.n {
		since := max(d.at, d.paused)
		retryAt = c.Earliest(d.value, since, since, n, 0)
		if n > d.n {
			retryAt = max(retryAt, d.retryAt)
		}
	}
	if at >= retryAt {
		return Result{}, false
	}
	return Result{RetryAt: fromMicro(retryAt), At: fromMicro(at), Limit: c.Name, Key: c.Key}, true
}
