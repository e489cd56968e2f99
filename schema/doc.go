// Package schema keeps Weir's tables at the version that this release needs. Any number of
// processes may call [Migrate] at once: each migration is applied once and as a whole, or not at
// all.
//
// # At the start of a program
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	...
//	err = schema.Migrate(ctx, pool)
//
// The tables go into the connection's current schema, or into one of your choice:
//
//	err = schema.Migrate(ctx, pool, schema.In("weir"))
//
// # With a migrating role of its own
//
// If the program's role may not create tables, migrate while deploying, and let the program check:
//
//	err = schema.Check(ctx, pool, schema.In("weir"))
//	switch {
//	case errors.Is(err, schema.ErrNotMigrated): // deploy the migrations first
//	case errors.Is(err, schema.ErrIncompatible): // upgrade Weir
//	}
//
// The program's role needs only this:
//
//	GRANT USAGE ON SCHEMA weir TO app;
//	GRANT SELECT, INSERT, UPDATE ON weir.weir_balance TO app;
//	GRANT SELECT, INSERT ON weir.weir_settled TO app; -- for Settle and Release
//	GRANT SELECT, INSERT, UPDATE ON weir.weir_slot TO app; -- for packages slots and scheduler
//	GRANT SELECT, INSERT, UPDATE, DELETE ON weir.weir_line, weir.weir_line_tenant, weir.weir_turn TO app; -- for fair lines and AtOnce of scheduler
//	GRANT SELECT ON weir.weir_schema TO app; -- for Check
//	GRANT DELETE ON weir.weir_two_phase TO app; -- on Citus only: see ratelimit.Config
//
// To prune, a role also needs DELETE on weir_balance, weir_settled and weir_slot.
//
// The tables belong to the role that ran the migration. Programs do not run anything with its
// privileges.
//
// # With a tool of your own
//
// [Files] are plain SQL, in a form that golang-migrate, goose, tern and atlas read:
//
//	provider, err := goose.NewProvider(goose.DialectPostgres, db, schema.Files())
//
// # Releases and versions
//
// Migrations only go forward. Each records in weir_schema which releases still work after it: those
// that know at least a certain version. So releases can overlap in a rolling deployment: the
// previous one keeps working on the next one's schema. If it cannot, its Migrate and Check return
// [ErrIncompatible].
package schema
