package pgtest

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/schema"
)

// Coordinator returns a pool on a server of the test's own with Weir's tables. To Weir's statements
// it looks like the coordinator of a cluster. The table wrote says what each transaction has
// written: "tokens", "jobs" that wait in line, or "request" if it has requested two-phase commit.
// See Note.
func Coordinator(t testing.TB) *pgxpool.Pool {
	t.Helper()
	OneServer(t, "triggers note what is written")
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("skipped: DATABASE_URL is set, and this changes a catalog")
	}
	_, own := Own(t)
	cfg := own.Config()
	cfg.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, pool) })
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`SET allow_system_table_mods = on; CREATE TABLE pg_catalog.pg_dist_local_group AS SELECT 0 AS groupid;
			RESET allow_system_table_mods`,
		`CREATE TABLE weir_two_phase ()`,
		`CREATE TABLE wrote (transaction xid8, what text)`,
		`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO wrote VALUES (pg_current_xact_id(), tg_argv[0]); RETURN NULL; END $$`,
		`CREATE TRIGGER note AFTER DELETE ON weir_two_phase FOR EACH STATEMENT EXECUTE FUNCTION note('request')`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	Note(t, pool, "tokens", "weir_balance", "weir_settled")
	Note(t, pool, "jobs", "weir_line", "weir_line_tenant", "weir_turn")
	return pool
}

// Note has the rows that a transaction writes to tables noted in the table wrote.
func Note(t testing.TB, pool *pgxpool.Pool, what string, tables ...string) {
	t.Helper()
	for _, table := range tables {
		if _, err := pool.Exec(t.Context(), `CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON `+
			table+` FOR EACH ROW EXECUTE FUNCTION note('`+what+`')`); err != nil {
			t.Fatal(err)
		}
	}
}
