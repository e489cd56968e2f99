package main

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// signIn guards passwords.
type signIn struct {
	pool    *pgxpool.Pool
	limiter *ratelimit.Limiter
	limits  limits
	check   func(ctx context.Context, account, password string) (bool, error) // slow
}

var errWrong = errors.New("wrong account or password")

// attempt returns the token of a new session, or errWrong, or a *ratelimit.DeniedError; any other error is a failure of
// ours, upon which nobody is let in.
//
// The order is what makes it hold. To look first whether there have been too many failures, and count a failure after,
// would let all pass that guess at the same time: they all look before any has failed.
func (s *signIn) attempt(ctx context.Context, account, address, password string) (session string, err error) {
	// 1. Charge, and commit. The attempt counts from here on, whatever becomes of us. Both limits are charged or none.
	charged, err := s.limiter.Autocommit(s.pool).RateLimit(ctx, s.limits.perAccount.For(account), s.limits.perAddress.For(address))
	if err != nil {
		return "", err
	}
	if !charged.OK {
		return "", charged.Err()
	}

	// 2. Check, outside of any transaction: a slow hash holds no row that others wait for, and no connection.
	right, err := s.check(ctx, account, password)
	if err != nil {
		return "", err
	}
	if !right {
		return "", errWrong
	}

	// 3. Give back, together with the session that is the reason. The account's earlier failures are forgiven; the
	// address's are not, or an attacker would sign in to an account of his own now and then and guess on.
	session = rand.Text()
	err = s.limiter.InTx(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.limiter.GiveBack(ctx, tx, charged); err != nil {
			return err
		}
		if err := s.limiter.ResetRateLimit(ctx, tx, s.limits.perAccount.For(account)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO session (token, account) VALUES ($1, $2)`, session, account)
		return err
	})
	if err != nil {
		return "", err
	}
	return session, nil
}
