package lockout

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// State is the state of an account, a device or an address.
type State struct {
	Attempts    int       // left before it is locked; 0 while it is locked
	LockedUntil time.Time // by the database's clock; zero if it is not locked
	Lockouts    int       // remembered
}

// State returns how the account and the address in who stand, for support staff. If who has a valid
// token for the account, only the device counts. Empty fields are left out. If there are several,
// State returns the strictest. It changes nothing, and its answer may be
// outdated when it returns: do not guard anything with it.
//
// Errors: an error that matches [ratelimit.ErrInvalid] if who names nothing; otherwise the
// database's, wrapped.
func (l *Lockout) State(ctx context.Context, who Who) (State, error) {
	subjects, err := l.some(who)
	if err != nil {
		return State{}, err
	}
	auto := l.limiter.Autocommit(l.pool)
	var all State
	for i, s := range subjects {
		failures, err := auto.Value(ctx, s.failures.For(s.key))
		if err != nil {
			return State{}, err
		}
		locks, err := auto.Value(ctx, s.locks.For(s.key))
		if err != nil {
			return State{}, err
		}
		one := State{s.left(failures.Value), failures.PausedUntil, s.remembered(locks.Value)}
		if !one.LockedUntil.IsZero() {
			one.Attempts = 0
		}
		if i == 0 {
			all = one
			continue
		}
		all.Attempts, all.Lockouts = min(all.Attempts, one.Attempts),
			max(all.Lockouts, one.Lockouts)
		if one.LockedUntil.After(all.LockedUntil) {
			all.LockedUntil = one.LockedUntil
		}
	}
	return all, nil
}

// Unlock forgets all failures, locks and lockouts of the same accounts, devices and addresses as
// State reads, and commits that. It is for support staff who are sure of the caller's identity: an
// attacker starts again from zero, too. In other processes, a limiter with Config.RememberDenials
// may deny until the lock would have ended.
//
// Errors: an error that matches [ratelimit.ErrInvalid] if who names nothing; otherwise those of
// [ratelimit.Limiter.InTx].
func (l *Lockout) Unlock(ctx context.Context, who Who) error {
	subjects, err := l.some(who)
	if err != nil {
		return err
	}
	var rows []ratelimit.Request
	for _, s := range subjects {
		rows = append(rows, s.rows()...)
	}
	return l.limiter.InTxOptions(ctx, l.pool, readCommitted,
		func(ctx context.Context, tx pgx.Tx) error {
			if err := l.limiter.ResetRateLimit(ctx, tx, rows...); err != nil {
				return err
			}
			return l.limiter.Resume(ctx, tx, rows...)
		})
}

func (l *Lockout) some(who Who) ([]subject, error) {
	subjects := l.named(who)
	if len(subjects) == 0 {
		return nil, invalid("Who", "", "an account or an address that is counted")
	}
	return subjects, nil
}
