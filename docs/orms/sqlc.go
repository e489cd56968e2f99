package orms

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/docs/orms/sqlc/onpgx"
	"github.com/weir-go/weir/docs/orms/sqlc/onsql"
	"github.com/weir-go/weir/ratelimit"
)

// SQLC stores files by queries that sqlc has generated for pgx (sql_package: pgx/v5).
type SQLC struct {
	Limiter *ratelimit.Limiter
	Pool    *pgxpool.Pool
}

// Save begins the transaction by InTx, which runs it again after a conflict.
func (s SQLC) Save(ctx context.Context, owner, name string) error {
	return s.Limiter.InTx(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.Limiter.Consume(ctx, tx, Uploads.For(owner)); err != nil {
			return err
		}
		return onpgx.New(tx).CreateUpload(ctx, onpgx.CreateUploadParams{Owner: owner, Name: name})
	})
}

// SQLCOverSQL stores files by queries that sqlc has generated for database/sql.
type SQLCOverSQL struct {
	Limiter *ratelimit.Limiter
	DB      *sql.DB
}

// Save begins the transaction by InSQLTx, which runs it again after a conflict.
func (s SQLCOverSQL) Save(ctx context.Context, owner, name string) error {
	return s.Limiter.InSQLTx(ctx, s.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.Limiter.InSQL(tx).Consume(ctx, Uploads.For(owner)); err != nil {
			return err
		}
		return onsql.New(tx).CreateUpload(ctx, onsql.CreateUploadParams{Owner: owner, Name: name})
	})
}
