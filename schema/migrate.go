package schema

import (
	"context"
	"fmt"
	"hash/fnv"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// DB begins transactions: *pgxpool.Pool and *pgx.Conn do.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Migrate brings the schema up to the newest version that this release knows, and does nothing if
// it is there already. It is one READ COMMITTED transaction, whatever level is the connection's
// default: a call that fails leaves nothing behind. With default_transaction_read_only it fails if
// there is something to do.
//
// Any number of processes may call it at once, so you can call it at the start of a program: one
// migrates, the others wait and find nothing left to do. Cancelling ctx ends the wait.
//
// A schema that a later release has migrated further is left alone. That is no error unless the
// later release has declared it incompatible with this one: then Migrate returns [ErrIncompatible].
//
// The role needs USAGE and CREATE on the schema; CREATE on the database if the schema has to be
// created; only USAGE on the schema and SELECT on weir_schema if there is nothing to apply.
func Migrate(ctx context.Context, db DB, opts ...Option) error {
	return migrate(ctx, db, Files(), opts...)
}

func migrate(ctx context.Context, db DB, files fs.FS, opts ...Option) error {
	migrations, err := load(files)
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	newest := len(migrations)
	o := collect(opts)
	if o.toVersion && (o.version < 1 || o.version > newest) {
		return fmt.Errorf("schema: migrate to version %d: this release of Weir knows versions 1 to %d",
			o.version, newest)
	}

	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
		func(tx pgx.Tx) error {
			p, err := locate(ctx, tx, o)
			if err != nil {
				return err
			}
			if err := p.lock(ctx, tx); err != nil {
				return err
			}
			if err := p.create(ctx, tx); err != nil {
				return err
			}
			s, err := p.state(ctx, tx)
			if err != nil {
				return err
			}
			if o.toVersion && o.version < s.version {
				return fmt.Errorf("migrate schema %q to version %d: it is at version %d, and there is no way back",
					p.schema, o.version, s.version)
			}
			if s.version > newest {
				return p.compatible(s, newest)
			}
			target := newest
			if o.toVersion {
				target = o.version
			}
			if err := p.apply(ctx, tx, migrations[s.version:target]); err != nil || !o.distribute {
				return err
			}
			return p.distribute(ctx, tx, o.with)
		})
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

// lock waits until no other process migrates the schema, and holds it until the transaction ends.
//
// Weir's decisions do not depend on advisory locks, because those share one space of numbers with
// the application's own. Here that does no harm: the lock is needed before there is a table to
// lock, it is held only while a migration runs, and a number that the application happens to use
// costs a wait.
func (p place) lock(ctx context.Context, tx pgx.Tx) error {
	h := fnv.New64a()
	h.Write([]byte("weir schema " + p.schema))
	key := int64(h.Sum64()) //nolint:gosec // Half of the hashes are negative numbers, which are as good.
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock($1)`, oneShot,
		key); err != nil {
		return fmt.Errorf("wait for other migrations of schema %q: %w", p.schema, err)
	}
	return nil
}

func (p place) apply(ctx context.Context, tx pgx.Tx, migrations []migration) error {
	if len(migrations) == 0 {
		return nil
	}
	if err := p.enter(ctx, tx); err != nil {
		return err
	}
	for _, m := range migrations {
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return fmt.Errorf("apply %s to schema %q: %w",
				m.name, p.schema, p.grant(err, "USAGE, CREATE ON SCHEMA "+quote(p.schema)))
		}
	}
	return nil
}
