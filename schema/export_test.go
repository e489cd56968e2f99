package schema

import (
	"context"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// MigrateFiles is Migrate of a release whose files are these.
func MigrateFiles(ctx context.Context, db DB, files fs.FS, opts ...Option) error {
	return migrate(ctx, db, files, opts...)
}

// Lock takes the lock that Migrate takes, until tx ends.
func Lock(ctx context.Context, tx pgx.Tx, schema string) error {
	return place{schema: schema}.lock(ctx, tx)
}
