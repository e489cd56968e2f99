package schema

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotMigrated is what [Check] returns if migrations are missing that this release needs. Run
	// [Migrate].
	ErrNotMigrated = errors.New("not migrated")

	// ErrIncompatible is what [Check] and [Migrate] return if a later release has changed the
	// schema so that this release cannot work on it. Upgrade Weir.
	ErrIncompatible = errors.New("incompatible")
)

// grant adds to a permission error of Postgres the GRANT statements that fix it. A privilege is
// written like "USAGE ON SCHEMA app".
func (p place) grant(err error, privileges ...string) error {
	const insufficientPrivilege = "42501"
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != insufficientPrivilege {
		return err
	}
	grants := make([]string, len(privileges))
	for i, privilege := range privileges {
		grants[i] = "GRANT " + privilege + " TO " + quote(p.role)
	}
	return fmt.Errorf("%w: run %s", err, strings.Join(grants, "; "))
}

func quote(name ...string) string { return pgx.Identifier(name).Sanitize() }
