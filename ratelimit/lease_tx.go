package ratelimit

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// TakeInTx is Take for a transaction of [Limiter.InTx]. If the transaction does not commit, because
// of an error, a panic or a conflict, the lease has its tokens again. It costs no round trip.
//
// If the lease does not hold enough, the tokens are taken in the transaction, as by
// [Limiter.RateLimit], with a round trip and the row's lock, and roll back with it. The Result is
// then that of RateLimit, without Outcomes.
//
// The tokens stay taken if the outcome of COMMIT is unknown; if only a savepoint is rolled back;
// and if the transaction rolls back more than a second and a half after they were taken from the
// database, or after the lease was closed. Any other transaction is refused with an error that
// matches [ErrInvalid], as the lease cannot learn how it ends.
func (s *Lease) TakeInTx(ctx context.Context, tx pgx.Tx, n float64) (Result, error) {
	o := s.l.observe(ctx, []Request{s.request.Count(n)})
	if tx == nil {
		return o.told(Result{}, errNoTx())
	}
	a := s.l.transaction(tx).attempt
	if a == nil {
		return o.told(Result{}, &InvalidError{Limit: s.calls[0].Name, Field: "tx",
			Value: plain("a transaction that InTx has not begun"),
			Want:  "a transaction of InTx; in any other use Limiter.RateLimit"})
	}
	if err := s.check(n); err != nil {
		return o.told(Result{}, err)
	}
	res, ok, err := s.borrow(a, n)
	if ok || err != nil {
		return o.told(res, err)
	}
	res, err = s.l.RateLimit(ctx, tx, s.request.Count(n))
	res.Outcomes = nil
	return res, err
}

// borrow takes from the hand. If the attempt does not commit, it puts the tokens back.
func (s *Lease) borrow(a *attempt, n float64) (res Result, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res, took, ok, err := s.try(n, true)
	if len(took) > 0 {
		a.undo = append(a.undo, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.closed { // they stay taken
				return
			}
			s.putBack(took, s.now())
			s.giveBackSoon()
		})
	}
	if ok || err != nil {
		return res, ok, err
	}
	now := s.now()
	s.used += n
	if s.last == 0 { // how fast tokens are used is known from the second take on
		s.last = now
		return Result{}, false, nil
	}
	s.fetch()
	return Result{}, false, nil
}
