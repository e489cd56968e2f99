package lockout

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// State is how an account, a device or an address stands.
type State struct {
	Attempts    int       // that are left before it is locked; 0 while it is
	LockedUntil time.Time // by the database's clock; zero if it is not locked
	Lockouts    int       // that are remembered
}

// State tells how what who names stands, for those who help people: its account, or its device if there is a token for the
// account, and its address. What is zero is left out; of several the strictest is told. It changes nothing, and what it tells
// may have changed when it returns: guard nothing by it.
//
// Errors: one that matches [ratelimit.ErrInvalid] if who names nothing; else the database's, wrapped.
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
		all.Attempts, all.Lockouts = min(all.Attempts, one.Attempts), max(all.Lockouts, one.Lockouts)
		if one.LockedUntil.After(all.LockedUntil) {
			all.LockedUntil = one.LockedUntil
		}
	}
	return all, nil
}

// Unlock forgets all failures, locks and lockouts of what who names, as State does, and commits that. It is for those who help
// people, when they know whom they talk to: an attacker begins anew, too. A limiter with Config.RememberDenials in another
// process denies on until the lock would have ended.
//
// Errors: one that matches [ratelimit.ErrInvalid] if who names nothing; else as those of [ratelimit.Limiter.InTx].
func (l *Lockout) Unlock(ctx context.Context, who Who) error {
	subjects, err := l.some(who)
	if err != nil {
		return err
	}
	var rows []ratelimit.Request
	for _, s := range subjects {
		rows = append(rows, s.rows()...)
	}
	return l.limiter.InTxOptions(ctx, l.pool, readCommitted, func(ctx context.Context, tx pgx.Tx) error {
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
