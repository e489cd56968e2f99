package orms

import (
	"context"
	"database/sql"

	"github.com/uptrace/bun"

	"github.com/weir-go/weir/ratelimit"
)

// Bun stores files by Bun. Make its handle with bun.NewDB(db, pgdialect.New()).
type Bun struct {
	Limiter *ratelimit.Limiter
	Bun     *bun.DB
}

// bunUpload is a row.
type bunUpload struct {
	bun.BaseModel `bun:"table:upload"`
	Owner, Name   string
}

// Save begins the transaction by InSQLTx, which runs it again after a conflict.
func (s Bun) Save(ctx context.Context, owner, name string) error {
	return s.Limiter.InSQLTx(ctx, s.Bun.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.Limiter.InSQL(tx).Consume(ctx, Uploads.For(owner)); err != nil {
			return err
		}
		_, err := s.Bun.NewInsert().Conn(tx).Model(&bunUpload{Owner: owner, Name: name}).Exec(ctx)
		return err
	})
}

// BunBegins stores files in a transaction that Bun begins.
type BunBegins struct {
	Limiter *ratelimit.Limiter
	Bun     *bun.DB
}

// Save leaves it to its caller to try again after a conflict.
func (s BunBegins) Save(ctx context.Context, owner, name string) error {
	return s.Bun.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if err := s.Limiter.InSQL(tx.Tx).Consume(ctx, Uploads.For(owner)); err != nil {
			return err
		}
		_, err := tx.NewInsert().Model(&bunUpload{Owner: owner, Name: name}).Exec(ctx)
		return err
	})
}
