package schema_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

// firstFile returns the first migration.
func firstFile() []byte {
	data, err := fs.ReadFile(schema.Files(), "0001_balance.up.sql")
	if err != nil {
		panic(err)
	}
	return data
}

func TestFilesAreNumberedToNewestAndSayWhy(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(schema.Files(), "*")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != schema.Newest {
		t.Errorf("%d files; Newest is %d", len(names), schema.Newest)
	}
	for i, name := range names {
		version := i + 1
		if !regexp.MustCompile(fmt.Sprintf(`^%04d_[a-z_]+\.up\.sql$`, version)).MatchString(name) {
			t.Errorf("%s: want %04d_name.up.sql", name, version)
		}
		data, err := fs.ReadFile(schema.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if !strings.HasPrefix(text, "-- +goose Up\n\n-- ") {
			t.Errorf("%s does not begin with goose's line and a comment that says why", name)
		}
		if !strings.Contains(text, fmt.Sprintf("INSERT INTO weir_schema (version, compatible) VALUES (%d, ", version)) {
			t.Errorf("%s does not record itself", name)
		}
	}
}

func TestFilesThatAreNotNumberedFromOneWithoutGapsAreRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	file := &fstest.MapFile{Data: []byte("SELECT 1")}
	for _, test := range []struct {
		name, want string
		files      fstest.MapFS
	}{
		{"gap", "0003_c.up.sql stands where version 2 belongs", fstest.MapFS{"0001_a.up.sql": file, "0003_c.up.sql": file}},
		{"twice", "0001_b.up.sql stands where version 2 belongs", fstest.MapFS{"0001_a.up.sql": file, "0001_b.up.sql": file}},
		{"zero", "0000_a.up.sql stands where version 1 belongs", fstest.MapFS{"0000_a.up.sql": file}},
		{"no number", "a.sql stands where version 1 belongs", fstest.MapFS{"a.sql": file}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wantError(t, schema.MigrateFiles(t.Context(), pool, test.files), test.want)
		})
	}
}

// Other tools run the files one after the other, in the search_path that the connection happens to
// have.
func TestFilesAppliedByHandGiveTheSameSchemaAsMigrate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	want := catalog(t, pool)

	byHand := pgtest.Bare(t)
	path := setting("search_path", `no_such_schema, `+scan[string](t, byHand, "SELECT current_schema()")+`, public`)
	conn := connect(t, byHand, path)
	names, err := fs.Glob(schema.Files(), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := fs.ReadFile(schema.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, conn, string(data))
	}

	if got := catalog(t, byHand); got != want {
		t.Errorf("by hand:\n%s\nMigrate:\n%s", got, want)
	}
	if err := schema.Check(t.Context(), byHand); err != nil {
		t.Error(err)
	}
	if err := schema.Migrate(t.Context(), byHand); err != nil {
		t.Error(err)
	}
}

// catalog describes everything in the current schema, without the schema's name.
func catalog(t *testing.T, db querier) string {
	t.Helper()
	const sql = `
		WITH here AS (SELECT oid, nspname FROM pg_namespace WHERE nspname = current_schema())
		SELECT string_agg(replace(line, quote_ident(nspname), 'HERE'), E'\n' ORDER BY line) FROM here, LATERAL (
			SELECT format('class %s %s %s %s', relname, relkind, relpersistence, reloptions)
			FROM pg_class WHERE relnamespace = here.oid
			UNION ALL
			SELECT format('column %s.%s %s %s %s %s %s', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
				a.attnotnull, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid))
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
			LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			WHERE c.relnamespace = here.oid
			UNION ALL
			SELECT format('constraint %s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = here.oid
			UNION ALL
			SELECT format('index %s', pg_get_indexdef(oid)) FROM pg_class WHERE relnamespace = here.oid AND relkind = 'i'
			UNION ALL
			SELECT format('function %s', pg_get_functiondef(oid)) FROM pg_proc WHERE pronamespace = here.oid
			UNION ALL
			SELECT format('type %s %s', typname, typtype) FROM pg_type WHERE typnamespace = here.oid
		) AS lines (line)`
	text := scan[string](t, db, sql)
	return text + "\n" + scan[string](t, db, `SELECT string_agg(format('applied %s %s', version, compatible), E'\n' ORDER BY version) FROM weir_schema`)
}
