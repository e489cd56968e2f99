package orms

import (
	"context"
	"database/sql"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"

	"github.com/weir-go/weir/ratelimit"
)

// Ent stores files by Ent.
type Ent struct {
	Limiter *ratelimit.Limiter
	DB      *sql.DB
}

// Save begins the transaction by InSQLTx, which runs it again after a conflict.
func (s Ent) Save(ctx context.Context, owner, name string) error {
	return s.Limiter.InSQLTx(ctx, s.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.Limiter.InSQL(tx).Consume(ctx, Uploads.For(owner)); err != nil {
			return err
		}
		return createUpload(ctx, entIn(tx), owner, name)
	})
}

// entIn returns a driver of Ent whose statements run in tx. The client that Ent has generated takes it:
//
//	client := ent.NewClient(ent.Driver(entIn(tx)))
func entIn(tx *sql.Tx) dialect.Driver {
	return entTx{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
}

type entTx struct{ *entsql.Driver }

// Tx has Ent run in tx, too, what it would run in a transaction of its own, such as an update of one row.
func (d entTx) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// createUpload does what the generated client does for client.Upload.Create().
func createUpload(ctx context.Context, drv dialect.Driver, owner, name string) error {
	node := sqlgraph.NewCreateSpec("upload", sqlgraph.NewFieldSpec("id", field.TypeInt))
	node.SetField("owner", field.TypeString, owner)
	node.SetField("name", field.TypeString, name)
	return sqlgraph.CreateNode(ctx, drv, node)
}
