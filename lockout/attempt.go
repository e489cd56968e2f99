package lockout

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// Attempt is an attempt that was charged. It counts as a failure unless [Attempt.Succeeded] is
// called; there is nothing to call for a failure.
type Attempt struct {
	limiter *ratelimit.Limiter
	charged []subject
	taken   ratelimit.Result
	lock    ratelimit.Result // what its lock has taken, if it set one
}

// Begin charges an attempt and commits that, in a transaction of its own, as [Lockout.Attempt] does
// before the check, with the same errors. Call it when a secret is about to be checked, not when
// you ask for it: a user who leaves has failed.
func (l *Lockout) Begin(ctx context.Context, who Who) (*Attempt, error) {
	subjects, err := l.charged(who)
	if err != nil {
		return nil, err
	}
	requests := make([]ratelimit.Request, len(subjects))
	for i, s := range subjects {
		requests[i] = s.attempt()
	}

	var a *Attempt
	var denied error
	err = l.limiter.InTxOptions(ctx, l.pool, readCommitted,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			a, denied = &Attempt{limiter: l.limiter, charged: subjects}, nil
			if a.taken, err = l.limiter.RateLimit(ctx, tx, requests...); err != nil {
				return err
			}
			if !a.taken.OK {
				denied, err = l.denied(ctx, tx, subjects, a.taken)
				return err
			}
			// The last attempt locks before it is known to be wrong: nothing that happens from here
			// on can come between.
			if own := subjects[0]; own.left(a.taken.Outcomes[0].Value) == 0 {
				a.lock, err = own.lock(ctx, l.limiter, tx)
			}
			return err
		})
	if err == nil {
		err = denied
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// denied does what an attempt that was denied entails: it locks what has none left, and extends
// locks if that is asked for. The LockedError is err where nothing was written, so that the
// transaction rolls back.
func (l *Lockout) denied(
	ctx context.Context, tx pgx.Tx, subjects []subject, res ratelimit.Result,
) (locked, err error) {
	e := &LockedError{At: res.At}
	wrote := false
	for i, s := range subjects {
		o := &res.Outcomes[i]
		if o.OK {
			continue
		}
		until := o.RetryAt
		// Who is locked has all attempts for when that is over.
		if s.left(o.Value) == 0 || l.cfg.ExtendWhileLocked {
			now, changed, err := l.escalate(ctx, tx, s)
			if err != nil {
				return nil, err
			}
			wrote = wrote || changed
			if until = now.RetryAt; now.OK {
				until = now.At // at once
			}
			if now.At.After(e.At) {
				e.At = now.At
			}
		}
		if e.Whose == "" || until.After(e.Until) {
			e.Whose, e.Until, e.limit, e.key = s.whose, until, o.Limit, o.Key
		}
	}
	if wrote {
		return e, nil
	}
	return nil, e
}

// escalate locks a subject that has no attempts left, or begins its lock anew if that is asked for:
// then it has changed. It returns what an attempt that takes nothing meets now.
func (l *Lockout) escalate(
	ctx context.Context, tx pgx.Tx, s subject,
) (now ratelimit.Result, changed bool, err error) {
	// Nothing is taken, and of those who were denied at the same time only one gets the row before
	// it is locked.
	nothing := s.failures.For(s.key).Count(0)
	now, err = l.limiter.RateLimit(ctx, tx, nothing)
	switch {
	case err != nil:
		return now, false, err
	case !now.OK && !l.cfg.ExtendWhileLocked: // another has locked it meanwhile
		return now, false, nil
	case !now.OK:
		err = s.extend(ctx, l.limiter, tx)
	case s.left(now.Outcomes[0].Value) > 0:
		// an attempt was given back meanwhile, or the lock has ended
		return now, false, nil
	default:
		_, err = s.lock(ctx, l.limiter, tx)
	}
	if err == nil {
		now, err = l.limiter.CheckRateLimit(ctx, tx, nothing)
	}
	return now, true, err
}

// Succeeded records that the attempt was right, in the transaction that writes what follows from
// it, such as a session. The failures of the account are forgiven, or those of the device if the
// attempt came with a token. A lock that they have caused since the charge is lifted; in other
// processes, a limiter with Config.RememberDenials may deny until its end all the same. The address
// gets only this attempt back, or nothing if it was locked meanwhile. Past lockouts stay
// remembered, except one that this attempt has caused.
//
// Call it once, or once in each run if the transaction runs again. If the transaction rolls back,
// the attempt counts as a failure. Errors are those of [ratelimit.Limiter.RateLimit]; the zero
// Attempt is refused with an error that matches [ratelimit.ErrInvalid].
func (a *Attempt) Succeeded(ctx context.Context, tx pgx.Tx) error {
	if a == nil || len(a.charged) == 0 {
		return invalid("Attempt", nil, "one that Begin has returned")
	}
	own := a.charged[0]
	for i, address := range a.charged[1:] {
		state, err := a.limiter.Value(ctx, tx, address.attempt())
		if err != nil {
			return err
		}
		// A lock has filled the balance: on top of that the attempt would be one that nobody has
		// made.
		if state.Delay == a.taken.Outcomes[i+1].Delay {
			if err := a.limiter.GiveBack(ctx, tx, a.taken); err != nil {
				return err
			}
		}
	}
	if err := a.limiter.ResetRateLimit(ctx, tx, own.attempt()); err != nil {
		return err
	}
	if a.lock.OK {
		if err := a.limiter.GiveBack(ctx, tx, a.lock); err != nil {
			return err
		}
	}
	state, err := a.limiter.Value(ctx, tx, own.attempt())
	if err != nil || state.PausedUntil.IsZero() {
		return err
	}
	return a.limiter.Resume(ctx, tx, own.rows()...)
}
