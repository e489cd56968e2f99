package schema_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

func TestMigrateBringsAnEmptySchemaToTheNewestVersionAndThenDoesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)

	wantVersion(t, pool, 0)
	if err := schema.Check(t.Context(), pool); !errors.Is(err, schema.ErrNotMigrated) {
		t.Errorf("Check of an empty schema: %v; want ErrNotMigrated", err)
	} else {
		wantError(t, err, "version 0", "run schema.Migrate")
	}
	for range 3 {
		if err := schema.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		wantVersion(t, pool, schema.Newest)
		if err := schema.Check(t.Context(), pool); err != nil {
			t.Error(err)
		}
	}
	if n := scan[int](t, pool, "SELECT count(*) FROM weir_schema"); n != schema.Newest {
		t.Errorf("weir_schema has %d rows; want one a version", n)
	}
}

func TestTenProcessesThatMigrateAtOnceMigrateOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		change  func(*pgx.ConnConfig)
		options func(t *testing.T, pool *pgxpool.Pool) []schema.Option
	}{
		{"current schema", nil, func(*testing.T, *pgxpool.Pool) []schema.Option { return nil }},
		// Those who waited must see what the first one did, not a snapshot from before.
		{"serializable by default", setting("default_transaction_isolation", "serializable"),
			func(*testing.T, *pgxpool.Pool) []schema.Option { return nil }},
		{"schema that does not exist", nil, func(t *testing.T, pool *pgxpool.Pool) []schema.Option {
			return []schema.Option{schema.In(spare(t, pool, "weir_ten_"))}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Bare(t)
			opts := test.options(t, pool)

			const processes = 10
			start := make(chan struct{})
			errs := make(chan error, processes)
			for range processes {
				conn := connect(t, pool, test.change)
				// Each has looked before: what its session remembers of that must not mislead it.
				wantVersion(t, conn, 0, opts...)
				go func() {
					<-start
					errs <- schema.Migrate(t.Context(), conn, opts...)
				}()
			}
			close(start)
			for range processes {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			wantVersion(t, pool, schema.Newest, opts...)
		})
	}
}

func TestMigrateWorksWhateverTheConnectionsDefaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*pgx.ConnConfig)
	}{
		{"serializable", setting("default_transaction_isolation", "serializable")},
		{"deferrable", setting("default_transaction_deferrable", "on")},
		{"backslashes in strings", setting("backslash_quote", "off")},
		{"cache statement", func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement }},
		{"cache describe", func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe }},
		{"describe exec", func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec }},
		{"exec", func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec }},
		{"simple protocol", func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Bare(t), test.change)
			for range 2 {
				if err := schema.Migrate(t.Context(), conn); err != nil {
					t.Fatal(err)
				}
				wantVersion(t, conn, schema.Newest)
				if err := schema.Check(t.Context(), conn); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A pooler in transaction mode hands a session to the next client with whatever the last one left
// behind.
func TestMigrateLeavesNothingBehindInTheSession(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	conn := connect(t, pool, nil)
	before := scan[string](t, conn, "SHOW search_path")

	if err := schema.Migrate(t.Context(), conn, schema.In(spare(t, pool, "weir_session_"))); err != nil {
		t.Fatal(err)
	}
	if after := scan[string](t, conn, "SHOW search_path"); after != before {
		t.Errorf("search_path was %s and is %s", before, after)
	}
	const statements = `SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%weir_schema%' OR statement LIKE '%advisory%'`
	if n := scan[int](t, conn, statements); n > 1 { // itself, which the test's connection prepares
		t.Errorf("%d prepared statements are left", n-1)
	}
	const locks = `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`
	if n := scan[int](t, conn, locks); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
}

func TestMigrateTakesSchemaNamesLiterally(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{
		"plain_", "Upper Case ", `quo"ted `, "it's ", "semi;colon -- ", "dot.ted ",
		"comma, public ", `back\slash `, "$$", "é🙂 ", "select ", "%s ",
	} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Bare(t)
			name := spare(t, pool, prefix)
			for range 2 {
				if err := schema.Migrate(t.Context(), pool, schema.In(name)); err != nil {
					t.Fatal(err)
				}
			}
			wantVersion(t, pool, schema.Newest, schema.In(name))
			wantVersion(t, pool, 0)
			if err := schema.Check(t.Context(), pool, schema.In(name)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMigrateRefusesSchemaNamesThatPostgresWouldTakeForOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	for _, test := range []struct{ name, want string }{
		{"", "must not be empty"},
		{strings.Repeat("x", 64), "at most 63 bytes"},
		{"$user", "the role's name"},
		{"pg_temp", "unacceptable schema name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wantError(t, schema.Migrate(t.Context(), pool, schema.In(test.name)), test.want)
			if n := scan[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = left($1, 63)",
				test.name); n != 0 {
				t.Error("the schema was created")
			}
		})
	}
}

func TestWithoutACurrentSchemaTheErrorSaysToNameOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	for _, path := range []string{"", "no_such_schema"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pool, setting("search_path", path))

			wantError(t, schema.Migrate(t.Context(), conn), "no current schema", "schema.In")
			wantError(t, schema.Check(t.Context(), conn), "no current schema", "schema.In")

			name := spare(t, pool, "weir_path_")
			if err := schema.Migrate(t.Context(), conn, schema.In(name)); err != nil {
				t.Fatal(err)
			}
			if err := schema.Check(t.Context(), conn, schema.In(name)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestToStopsAtAVersionAndNeverGoesBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	files := release(3, 1)
	steps := []struct {
		opts    []schema.Option
		version int
		errs    []string
	}{
		{[]schema.Option{schema.To(0)}, 0, []string{"version 0", "versions 1 to 3"}},
		{[]schema.Option{schema.To(-1)}, 0, []string{"version -1", "versions 1 to 3"}},
		{[]schema.Option{schema.To(4)}, 0, []string{"version 4", "versions 1 to 3"}},
		{[]schema.Option{schema.To(1)}, 1, nil},
		{[]schema.Option{schema.To(1)}, 1, nil},
		{[]schema.Option{schema.To(2)}, 2, nil},
		{[]schema.Option{schema.To(1)}, 2, []string{"to version 1", "at version 2", "no way back"}},
		{nil, 3, nil},
		{[]schema.Option{schema.To(2)}, 3, []string{"to version 2", "at version 3", "no way back"}},
	}
	for i, step := range steps {
		err := schema.MigrateFiles(t.Context(), pool, files, step.opts...)
		if step.errs != nil {
			wantError(t, err, step.errs...)
		} else if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		wantVersion(t, pool, step.version)
	}
	versions := scan[[]int](t, pool, "SELECT array_agg(version ORDER BY applied_at, version) FROM weir_schema")
	if !slices.Equal(versions, []int{1, 2, 3}) {
		t.Errorf("applied %v", versions)
	}
}

func TestAMigrationThatFailsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	name := spare(t, pool, "weir_fail_")
	files := release(2, 1)
	files["0003_broken.up.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE half (); SELECT 1/0;")}

	err := schema.MigrateFiles(t.Context(), pool, files, schema.In(name))
	wantError(t, err, "0003_broken.up.sql", name, "division by zero")
	if n := scan[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = $1", name); n != 0 {
		t.Error("the schema is left")
	}

	if err := schema.MigrateFiles(t.Context(), pool, files, schema.In(name), schema.To(2)); err != nil {
		t.Fatal(err)
	}
	wantError(t, schema.MigrateFiles(t.Context(), pool, files, schema.In(name)), "0003_broken.up.sql")
	wantVersion(t, pool, 2, schema.In(name))
	if scan[bool](t, pool, "SELECT to_regclass($1) IS NOT NULL", quote(name, "half")) {
		t.Error("a table of the failed migration is left")
	}
}

func TestMigrateStopsWaitingWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	name := spare(t, pool, "weir_wait_")
	holder := begin(t, pool, pgx.ReadCommitted)
	if err := schema.Lock(t.Context(), holder, name); err != nil {
		t.Fatal(err)
	}

	application := unique("weir_waiter_")
	waiter := connect(t, pool, setting("application_name", application))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- schema.Migrate(ctx, waiter, schema.In(name)) }()

	const waits = `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'advisory'`
	for scan[int](t, pool, waits, application) == 0 {
		select {
		case err := <-done:
			t.Fatalf("Migrate did not wait for the lock: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	err := <-done
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want context.Canceled", err)
	}
	wantError(t, err, "wait for other migrations", name)

	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := schema.Migrate(t.Context(), pool, schema.In(name)); err != nil {
		t.Error(err)
	}
}

func TestPlainPostgresIsNotDistributed(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it is plain Postgres")
	for _, option := range []schema.Option{schema.Distributed(), schema.DistributedWith("orders")} {
		pool := pgtest.Bare(t)
		err := schema.Migrate(t.Context(), pool, option)
		if err == nil || !strings.Contains(err.Error(), "has no extension citus") {
			t.Errorf("got %v", err)
		}
		if err := schema.Check(t.Context(), pool); !errors.Is(err, schema.ErrNotMigrated) {
			t.Errorf("the tables were made: %v", err)
		}
	}
}
