package orms

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/weir-go/weir/ratelimit"
)

// GORM stores files by GORM. Make its handle with
// gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{}).
type GORM struct {
	Limiter *ratelimit.Limiter
	DB      *sql.DB
	GORM    *gorm.DB
}

// gormUpload is a row.
type gormUpload struct{ Owner, Name string }

// TableName is that of GORM's interface Tabler.
func (gormUpload) TableName() string { return "upload" }

// Save begins the transaction by InSQLTx, which runs it again after a conflict.
func (s GORM) Save(ctx context.Context, owner, name string) error {
	return s.Limiter.InSQLTx(ctx, s.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.Limiter.InSQL(tx).Consume(ctx, Uploads.For(owner)); err != nil {
			return err
		}
		return gormIn(ctx, s.GORM, tx).Create(&gormUpload{owner, name}).Error
	})
}

// gormIn returns a handle of GORM whose statements run in tx.
func gormIn(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	db = db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	db.Statement.ConnPool = tx
	return db
}

// GORMBegins stores files in a transaction that GORM begins.
type GORMBegins struct {
	Limiter *ratelimit.Limiter
	GORM    *gorm.DB
}

// Save leaves it to its caller to try again after a conflict.
func (s GORMBegins) Save(ctx context.Context, owner, name string) error {
	return s.GORM.WithContext(ctx).Transaction(func(db *gorm.DB) error {
		tx, err := sqlTxOf(db)
		if err != nil {
			return err
		}
		if err := s.Limiter.InSQL(tx).Consume(ctx, Uploads.For(owner)); err != nil {
			return err
		}
		return db.Create(&gormUpload{owner, name}).Error
	})
}

// sqlTxOf returns the transaction that GORM has begun.
func sqlTxOf(db *gorm.DB) (*sql.Tx, error) {
	pool := db.Statement.ConnPool
	if p, ok := pool.(*gorm.PreparedStmtTX); ok { // with gorm.Config.PrepareStmt
		pool = p.Tx
	}
	tx, ok := pool.(*sql.Tx)
	if !ok {
		return nil, fmt.Errorf("GORM has a %T, want the *sql.Tx of a transaction", pool)
	}
	return tx, nil
}
