package schema_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// migrated is pgtest.Bare with the schema in it.
func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Bare(t)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// connect opens a connection of its own, with settings that differ from the pool's.
func connect(t *testing.T, pool *pgxpool.Pool, change func(*pgx.ConnConfig)) *pgx.Conn {
	t.Helper()
	config := pool.Config().ConnConfig.Copy()
	if change != nil {
		change(config)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// setting is a change for connect.
func setting(name, value string) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) { c.RuntimeParams[name] = value }
}

// unique returns a name that no other test uses.
func unique(prefix string) string { return prefix + strings.ToLower(rand.Text()[:12]) }

// spare returns the name of a schema that does not exist yet, and drops it when the test ends.
func spare(t *testing.T, pool *pgxpool.Pool, prefix string) string {
	t.Helper()
	name := unique(prefix)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+quote(name)+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	return name
}

// spareRole creates a role without privileges, and drops it when the test ends.
func spareRole(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	name := unique("weir_role_")
	exec(t, pool, "CREATE ROLE "+name)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return name
}

type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func exec(t *testing.T, db querier, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// scan returns the one value that a query yields.
func scan[T any](t *testing.T, db querier, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// begin opens a transaction that is rolled back when the test ends.
func begin(t *testing.T, db schema.DB, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func wantVersion(t *testing.T, db schema.DB, want int, opts ...schema.Option) {
	t.Helper()
	got, err := schema.Version(t.Context(), db, opts...)
	if err != nil || got != want {
		t.Errorf("Version = %d, %v; want %d", got, err, want)
	}
}

// wantError checks that the error tells everything that its reader needs.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", parts)
	}
	text := err.Error()
	if !strings.HasPrefix(text, "schema: ") || strings.Count(text, "schema: ") != 1 {
		t.Errorf("%q: want the prefix %q once", text, "schema: ")
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

func quote(name ...string) string { return pgx.Identifier(name).Sanitize() }

// noise returns n printable bytes that do not compress.
func noise(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(rand.Text())
	}
	return b.String()[:n]
}
