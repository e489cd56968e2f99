package schema_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

// as opens a connection that acts as a role.
func as(t *testing.T, pool *pgxpool.Pool, role string) *pgx.Conn {
	t.Helper()
	conn := connect(t, pool, nil)
	exec(t, conn, "SET ROLE "+role)
	return conn
}

// The list is the one in doc.go.
func TestTheDocumentedPrivilegesAreEnoughAtRunTime(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	role := spareRole(t, pool)
	name := scan[string](t, pool, "SELECT current_schema()")
	exec(t, pool, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", quote(name), role))
	exec(t, pool, "GRANT SELECT, INSERT, UPDATE ON weir_balance TO "+role)
	exec(t, pool, "GRANT SELECT, INSERT ON weir_settled TO "+role)
	conn := as(t, pool, role)

	// weir_schema is for Check, and for a Migrate that has nothing to do.
	wantError(t, schema.Check(t.Context(), conn), "GRANT SELECT ON "+quote(name, "weir_schema"), role)
	exec(t, pool, "GRANT SELECT ON weir_schema TO "+role)
	if err := schema.Check(t.Context(), conn); err != nil {
		t.Error(err)
	}
	if err := schema.Migrate(t.Context(), conn); err != nil {
		t.Error(err)
	}

	tx := begin(t, conn, pgx.Serializable)
	for want := 9.0; want >= 7; want-- {
		if got := scan[float64](t, tx, takeSQL, "login", "k", 9); got != want {
			t.Errorf("took down to %v; want %v", got, want)
		}
	}
}

func TestMigrateSaysWhichPrivilegeIsMissing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	role := spareRole(t, pool)
	conn := as(t, pool, role)
	name := scan[string](t, pool, "SELECT current_schema()")
	absent := spare(t, pool, "weir_absent_")
	database := scan[string](t, pool, "SELECT current_database()")
	quoted := quote(role)

	wantError(t, schema.Migrate(t.Context(), conn), "no current schema", role)
	wantError(t, schema.Migrate(t.Context(), conn, schema.In(name)),
		"GRANT USAGE, CREATE ON SCHEMA "+quote(name)+" TO "+quoted)
	wantError(t, schema.Migrate(t.Context(), conn, schema.In(absent)),
		"GRANT CREATE ON DATABASE "+quote(database)+" TO "+quoted)

	exec(t, pool, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", quote(name), role))
	wantError(t, schema.Migrate(t.Context(), conn), "0001_balance.up.sql",
		"GRANT USAGE, CREATE ON SCHEMA "+quote(name)+" TO "+quoted)

	exec(t, pool, fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s", quote(name), role))
	if err := schema.Migrate(t.Context(), conn); err != nil {
		t.Error(err)
	}
	wantVersion(t, conn, schema.Newest)
}
