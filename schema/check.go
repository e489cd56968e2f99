package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Version returns the newest version that has been applied, or 0. It may be above [Newest] if a
// later release has migrated.
//
// The role needs USAGE on the schema and SELECT on weir_schema.
func Version(ctx context.Context, db DB, opts ...Option) (int, error) {
	_, s, err := read(ctx, db, opts)
	if err != nil {
		return 0, fmt.Errorf("schema: %w", err)
	}
	return s.version, nil
}

// Check reports whether this release works on the schema: nil, [ErrNotMigrated], [ErrIncompatible],
// or the error that kept it from finding out. It writes nothing and waits for no lock, so it also
// works on a standby.
//
// The role needs USAGE on the schema and SELECT on weir_schema.
func Check(ctx context.Context, db DB, opts ...Option) error {
	p, s, err := read(ctx, db, opts)
	if err == nil {
		err = p.check(s)
	}
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

func (p place) check(s state) error {
	if s.version < oldest {
		return fmt.Errorf("schema %q is %w: it is at version %d and this release of Weir needs %d: run schema.Migrate",
			p.schema, ErrNotMigrated, s.version, oldest)
	}
	return p.compatible(s, Newest)
}

// compatible checks that a release works on the schema: each migration records which version a
// release must know to work after it.
func (p place) compatible(s state, newest int) error {
	if s.compatible <= newest {
		return nil
	}
	return fmt.Errorf("schema %q is %w: it is at version %d, which needs a release of Weir that knows version %d, "+
		"and this one knows versions up to %d: upgrade Weir", p.schema, ErrIncompatible, s.version,
		s.compatible, newest)
}

// read is READ COMMITTED because a standby refuses SERIALIZABLE, which may be the connection's
// default.
func read(ctx context.Context, db DB, opts []Option) (place, state, error) {
	var p place
	var s state
	txOptions := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, db, txOptions, func(tx pgx.Tx) error {
		var err error
		if p, err = locate(ctx, tx, collect(opts)); err != nil {
			return err
		}
		s, err = p.state(ctx, tx)
		return err
	})
	return p, s, err
}
