package names

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// root is the top of the tree.
const root = "../../.."

// apart are directories that this test leaves out.
var apart = []string{
	"ratelimit", "slots", // their own tests look at the texts that they put together
}

// ours are trees whose statements only serve tests and measurements. internal has others, too: those
// of jobs are looked at here, and those of statements in ratelimit.
var ours = []string{"bench", "internal", "weirtest"}

// TestStatementsUseOnlyNamesOfPostgres looks at each statement in the Go files of each package.
func TestStatementsUseOnlyNamesOfPostgres(t *testing.T) {
	t.Parallel()
	dirs, err := Directories(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 10 {
		t.Errorf("only %q have statements", dirs)
	}
	for _, dir := range dirs {
		top, _, _ := strings.Cut(dir, "/")
		ofJobs := strings.HasPrefix(dir, "internal/jobs/")
		if slices.Contains(apart, dir) || slices.Contains(ours, top) && !ofJobs {
			continue
		}
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			withRiver(t, pool)
			own := pool.Config().ConnConfig.RuntimeParams["search_path"] + "."
			Check(t, pool, Statements{
				Dir:   filepath.Join(root, dir),
				Apart: []string{"distribute.go", "nodes.go"}, // of Citus
				Fill: []string{
					"{table}", own + "weir_balance", // of inspect
					"{balance}", own + "weir_balance", // of scheduler, and of cmd/weir
					"{ours}", own,
					"{river}", own,
					"{turn}", "(SELECT 1) AS turn",
					`{p.table("weir_settled")}`, own + "weir_settled", // of cmd/weir
					`{p.table("weir_schema")}`, own + "weir_schema",
					`{quote(p.schema, "weir_schema")}`, own + "weir_schema", // of schema
				},
				Paths: top == "examples" || top == "docs", // the search_path names the schema of their tables
			})
		})
	}
}

// TestMigrationsUseOnlyNamesOfPostgres looks at what migrations write. Other roles may create in
// the schema that is migrated.
func TestMigrationsUseOnlyNamesOfPostgres(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(schema.Files(), "*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var texts []string
	for _, file := range files {
		content, err := fs.ReadFile(schema.Files(), file)
		if err != nil {
			t.Fatal(err)
		}
		content = regexp.MustCompile(`--.*`).ReplaceAll(content, nil)
		for text := range strings.SplitSeq(string(content), ";") {
			text = strings.TrimSpace(text)
			switch kind, _, _ := strings.Cut(text, " "); kind {
			case "INSERT", "UPDATE", "DELETE":
				texts = append(texts, text)
			case "", "CREATE": // no operators
			default:
				t.Errorf("%s: see to it that this uses no names of others, and say so here:\n%s", file, text)
			}
		}
	}
	Check(t, pgtest.Pool(t), Statements{Texts: texts, Paths: true})
}

func TestNamesOfOthersAreFound(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE SEQUENCE weir_drawn`); err != nil {
		t.Fatal(err)
	}
	own := pool.Config().ConnConfig.RuntimeParams["search_path"]
	for _, c := range []struct{ sql, want string }{
		{`SELECT $1::float8 / $2::float8`, ""},
		{`SELECT $1::float8 / $2::bigint`, "operator /(double precision,bigint)"},
		{`SELECT $1::float8 * 1e6`, "operator *(double precision,numeric)"},
		{`SELECT least($1::float8, 2) - $1`, "operator -(double precision,numeric)"}, // with a literal
		{`SELECT FROM {table} WHERE value BETWEEN '1' AND 2`, "operator <=(double precision,integer)"},
		{`SELECT nullif(value, 0) FROM {table}`, "operator =(double precision,integer)"},
		{`SELECT FROM {table} WHERE name IS DISTINCT FROM key::varchar`, "=(text,character varying)"},
		{`SELECT FROM {table} WHERE name IN ('a', 'b') AND key = ANY ($1::text[])`, ""},
		{`SELECT FROM {table} WHERE name::varchar IN ('a', 'b')`,
			"=(character varying,character varying)"},
		{`SELECT FROM {table} WHERE (name, shard) > ($1::text, $2::float8)`, "row comparison operator >"},
		{`SELECT FROM {table} WHERE value IN (SELECT shard FROM {table})`, "=(double precision,integer)"},
		{`UPDATE {table} AS b SET delay = 1 FROM (SELECT 1.0 AS value) s WHERE s.value = b.value`,
			"operator =(numeric,double precision)"},
		{`SELECT date_part('epoch', ts) FROM {table}`, ""},
		{`SELECT round(delay) FROM {table}`, "function round(bigint)"},
		{`SELECT a FROM unnest($1::int[], $2::int[]) AS u (a, b)`, ""},
		{`SELECT unnest($1::int[])`, "function unnest(integer[])"},
		{`SELECT pg_catalog.array_agg(value), count(*) FROM {table}`, ""},
		{`SELECT array_agg(value) FROM {table}`, "function array_agg(double precision)"},
		{`SELECT format('%s', name) FROM {table}`, "function format(text,text)"},
		{`SELECT $1::jsonb->'key'::text`, ""},
		{`SELECT $1::jsonb->'key'`, "invalid input syntax"}, // it finds jsonb -> jsonb
		{`SELECT nextval('weir_drawn')`, "function nextval(text)"},
		{`EXPLAIN (FORMAT JSON) SELECT FROM weir_balance`, "table weir_balance"},
	} {
		sql := strings.ReplaceAll(c.sql, "{table}", own+".weir_balance")
		problems, err := find(t.Context(), pool, true, nil, []string{sql})
		if err != nil {
			t.Error(err)
		}
		got := strings.Join(problems, "\n")
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: found %q, want %q", c.sql, got, c.want)
		}
	}
}

func TestEveryStatementIsLookedAt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const program = "package p\n\nconst (\n" +
		"\ta = `SELECT 1`\n" +
		"\tb = `\nWITH b AS (` + a + `) SELECT {what} FROM {table}`\n" +
		"\tc = `UPDATE {table} SET value = {value}`\n)\n\n" +
		"func f() string { return fmt.Sprintf(`DELETE FROM %s`, a) + c }\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := sources(dir)
	if err != nil {
		t.Fatal(err)
	}
	problems, _, texts := Statements{
		Texts: []string{"\nWITH b AS (SELECT 1) SELECT 2 FROM there"},
		Fill:  []string{"{table}", "there"},
	}.gather(found)
	if !slices.Equal(texts, []string{"\nWITH b AS (SELECT 1) SELECT 2 FROM there", "SELECT 1"}) {
		t.Errorf("got %q", texts)
	}
	got := strings.Join(problems, "\n")
	if len(problems) != 2 || !strings.Contains(got, "UPDATE there SET value = {value}") ||
		!strings.Contains(got, "DELETE FROM {%s}") {
		t.Errorf("%d are not checked: %s", len(problems), got)
	}
}

func withRiver(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
}
