// Package pgerr reads errors of Postgres, and says how to fix those that users are likely to see.
package pgerr

import (
	"errors"
	"fmt"
)

// State returns the SQLSTATE of an error of Postgres, from any driver, or "".
func State(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// NotMigrated is the hint if a table or a function does not exist.
const NotMigrated = "Weir's tables are not where the connection looks for them: run schema.Migrate, and set Config.Schema if they have a schema of their own"

// hints are the same in all packages.
var hints = map[string]string{
	"42P01": NotMigrated, // undefined_table
	"3F000": NotMigrated, // invalid_schema_name
	// undefined_column
	"42703": "the tables that the connection finds are not this release's: run schema.Migrate, and set Config.Schema if the search_path has others",
	// insufficient_privilege
	"42501": "grant the role what the documentation of package schema lists",
}

// Hint adds to err how to fix it. The caller's own hints, by SQLSTATE, come before those of all
// packages.
func Hint(err error, own map[string]string) error {
	for _, of := range []map[string]string{own, hints} {
		if h, ok := of[State(err)]; ok {
			return fmt.Errorf("%w (%s)", err, h)
		}
	}
	return err
}
