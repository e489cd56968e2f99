package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/ratelimit"
)

// signIn guards passwords.
type signIn struct {
	pool    *pgxpool.Pool
	limiter *ratelimit.Limiter
	guard   *lockout.Lockout
	devices *lockout.Devices
	check   func(ctx context.Context, account, password string) (bool, error) // slow
	within  time.Duration                                                     // for a request
}

func newSignIn(pool *pgxpool.Pool, cfg lockout.Config,
	check func(ctx context.Context, account, password string) (bool, error)) (*signIn, error) {
	// of this run; in earnest the same in all processes, and for years
	secret := []byte(rand.Text() + rand.Text())
	devices, err := lockout.NewDevices(lockout.DevicesConfig{Keys: [][]byte{secret}})
	if err != nil {
		return nil, err
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return nil, err
	}
	cfg.Devices = devices
	guard, err := lockout.New(limiter, pool, cfg)
	if err != nil {
		return nil, err
	}
	return &signIn{pool, limiter, guard, devices, check, 10 * time.Second}, nil
}

var errWrong = errors.New("wrong account or password")

// signedIn is what a client keeps.
type signedIn struct{ session, device string }

// attempt returns a new session, or errWrong, or a *lockout.LockedError; any other error is a
// failure of ours, upon which nobody is let in.
func (s *signIn) attempt(ctx context.Context, who lockout.Who, password string) (signedIn, error) {
	// 1. Charge, and commit. The attempt counts from here on, whatever becomes of us.
	attempt, err := s.guard.Begin(ctx, who)
	if err != nil {
		return signedIn{}, err
	}

	// 2. Check, outside of any transaction: a slow hash holds no row that others wait for, and no
	//    connection.
	right, err := s.check(ctx, who.Account, password)
	if err != nil {
		return signedIn{}, err
	}
	if !right {
		return signedIn{}, errWrong
	}

	// 3. Give back, together with the session that is the reason.
	in := signedIn{rand.Text(), s.devices.Issue(who.Account, who.Device)}
	err = s.limiter.InTx(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := attempt.Succeeded(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO session (token, account) VALUES ($1, $2)`, in.session,
			who.Account)
		return err
	})
	if err != nil {
		return signedIn{}, err
	}
	return in, nil
}
