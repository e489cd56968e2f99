package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const forUpdateSQL = `CREATE TABLE for_update_bucket (key text PRIMARY KEY, tokens float8 NOT NULL, at timestamptz NOT NULL)`

// forUpdate reads and locks the row, decides in the program, and writes the row.
type forUpdate struct {
	pool   *pgxpool.Pool
	bucket bucket
}

func (f *forUpdate) take(ctx context.Context, key string) (ok bool, err error) {
	err = pgx.BeginTxFunc(ctx, f.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
		func(tx pgx.Tx) error {
			ok, err = f.takeInTx(ctx, tx, key)
			return err
		})
	return ok && err == nil, err
}

func (f *forUpdate) takeInTx(ctx context.Context, tx pgx.Tx, key string) (bool, error) {
	const read = `SELECT tokens, at FROM for_update_bucket WHERE key = $1 FOR UPDATE`
	var tokens float64
	var at time.Time
	err := tx.QueryRow(ctx, read, key).Scan(&tokens, &at)
	if errors.Is(err, pgx.ErrNoRows) {
		const insert = `INSERT INTO for_update_bucket VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
		if _, err := tx.Exec(ctx, insert, key, float64(f.bucket.tokens), time.Now()); err != nil {
			return false, err
		}
		err = tx.QueryRow(ctx, read, key).Scan(&tokens, &at)
	}
	if err != nil {
		return false, err
	}
	now := time.Now() // with the row locked
	if now.Before(at) {
		now = at
	}
	tokens = min(float64(f.bucket.tokens), tokens+f.bucket.perSecond()*now.Sub(at).Seconds())
	if tokens < 1 {
		return false, nil
	}
	_, err = tx.Exec(ctx, `UPDATE for_update_bucket SET tokens = $2, at = $3 WHERE key = $1`, key,
		tokens-1, now)
	return true, err
}

func (*forUpdate) close() error { return nil }
