package main

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed article.sql
var articleSQL string

// article asks the function of article.sql, in one round trip.
type article struct {
	pool           *pgxpool.Pool
	begin          string
	refill, window int
}

func newArticle(at place, b bucket, level pgx.TxIsoLevel) *article {
	seconds := int(b.period / time.Second)
	return &article{at.pool, "BEGIN ISOLATION LEVEL " + string(level), b.tokens / seconds, seconds}
}

// take runs again what could not be serialized, and what met the first call of the same key, which
// both insert.
func (a *article) take(ctx context.Context, key string) (ok bool, err error) {
	for {
		ok, err = a.once(ctx, key)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "40001" && pg.Code != "23505" {
			return ok, err
		}
	}
}

func (a *article) once(ctx context.Context, key string) (bool, error) {
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	var batch pgx.Batch
	remaining := 0
	batch.Queue(a.begin)
	batch.Queue(`SELECT rate_limiting_token_bucket_request($1, $2, $3)`, key, a.refill, a.window).
		QueryRow(func(row pgx.Row) error { return row.Scan(&remaining) })
	batch.Queue("COMMIT")
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		if conn.Conn().PgConn().TxStatus() != 'I' {
			_, rolledBack := conn.Exec(ctx, "ROLLBACK")
			err = errors.Join(err, rolledBack)
		}
		return false, err
	}
	return remaining >= 0, nil
}

func (*article) close() error { return nil }
