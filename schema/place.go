package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// oneShot makes a query an unnamed statement. Behind a pooler in transaction mode, a named one that
// the connection remembers may belong to another session of the server. Exec without parameters
// does not need it.
const oneShot = pgx.QueryExecModeExec

// A place is the schema that a call is about, the role that asks, and the database.
type place struct {
	schema   string
	role     string
	database string
}

// locate reads no table and takes no lock.
func locate(ctx context.Context, tx pgx.Tx, o options) (place, error) {
	const sql = `
		SELECT coalesce(pg_catalog.current_schema()::text, ''), current_user::text, pg_catalog.current_database()::text`
	var p place
	if err := tx.QueryRow(ctx, sql, oneShot).Scan(&p.schema, &p.role, &p.database); err != nil {
		return place{}, fmt.Errorf("find the current schema: %w", err)
	}
	switch {
	case o.hasSchema && o.schema == "":
		return place{}, errors.New(
			`In(""): a schema name must not be empty; leave In out for the current schema`,
		)
	case o.schema == "$user":
		return place{}, errors.New(
			`In("$user"): search_path reads this as the role's name; name the schema itself`,
		)
	case o.hasSchema:
		p.schema = o.schema
	case p.schema == "":
		return place{},
			fmt.Errorf("the connection has no current schema, since its search_path is empty, or names only schemas "+
				"that do not exist or that role %s may not use; name one with schema.In",
				quote(p.role))
	}
	return p, nil
}

// create makes the schema if there is none yet.
func (p place) create(ctx context.Context, tx pgx.Tx) error {
	// CREATE SCHEMA IF NOT EXISTS alone would ask for CREATE on the database even where the schema
	// exists.
	const sql = `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::text)`
	var exists bool
	if err := tx.QueryRow(ctx, sql, oneShot, p.schema).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema %q: %w", p.schema, err)
	}
	if exists {
		return nil
	}
	if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+quote(p.schema)); err != nil {
		return fmt.Errorf("create schema %q: %w", p.schema,
			p.grant(err, "CREATE ON DATABASE "+quote(p.database)))
	}
	return nil
}

// enter makes the schema the only one that unqualified names are looked up in, until the
// transaction ends.
func (p place) enter(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SET LOCAL search_path TO "+quote(p.schema)); err != nil {
		return fmt.Errorf("enter schema %q: %w", p.schema, err)
	}
	// Postgres accepts any search_path, but cuts names at 63 bytes, and skips schemas that the role
	// may not use. Then the tables would be created in another schema, or not at all.
	var current string
	if err := tx.QueryRow(ctx, `SELECT coalesce(pg_catalog.current_schema()::text, '')`, oneShot).
		Scan(&current); err != nil {
		return fmt.Errorf("enter schema %q: %w", p.schema, err)
	}
	switch current {
	case p.schema:
		return nil
	case "":
		return fmt.Errorf("enter schema %q: role %s may not use it: it needs GRANT USAGE, CREATE ON SCHEMA %s TO %s",
			p.schema, quote(p.role), quote(p.schema), quote(p.role))
	default:
		return fmt.Errorf("enter schema %q: Postgres cuts the name to %q: choose one of at most 63 bytes",
			p.schema, current)
	}
}

// A state is the last row of weir_schema. Both numbers are zero if no migration was applied.
type state struct {
	version    int
	compatible int // the lowest version that a release must know to work on this schema
}

func (p place) state(ctx context.Context, tx pgx.Tx) (state, error) {
	// to_regclass would be shorter, but it may answer from a cache that is older than the wait for
	// Migrate's lock.
	const find = `
		SELECT EXISTS (
			SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $1::text AND c.relname = 'weir_schema')`
	var exists bool
	if err := tx.QueryRow(ctx, find, oneShot, p.schema).Scan(&exists); err != nil {
		return state{}, fmt.Errorf("look for weir_schema in schema %q: %w", p.schema, err)
	}
	if !exists {
		return state{}, nil
	}
	var s state
	sql := `SELECT version, compatible FROM ` + quote(p.schema, "weir_schema") +
		` ORDER BY version DESC LIMIT 1`
	err := tx.QueryRow(ctx, sql, oneShot).Scan(&s.version, &s.compatible)
	if errors.Is(err, pgx.ErrNoRows) {
		return state{}, nil
	}
	if err != nil {
		err = p.grant(err, "USAGE ON SCHEMA "+quote(p.schema),
			"SELECT ON "+quote(p.schema, "weir_schema"))
		return state{}, fmt.Errorf("read weir_schema in schema %q: %w", p.schema, err)
	}
	return s, nil
}
