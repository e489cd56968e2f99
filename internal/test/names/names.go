// Package names checks that another role cannot replace what the names in a statement mean.
//
// Postgres looks for an unqualified operator or function in every schema of the search_path, and
// takes the one whose argument types match exactly. Only among several of those does pg_catalog
// come first. It has no float8 / bigint, for example. A role that may create in one of the schemas
// can make that operator, and the role that runs the statement runs its code.
//
// [Check] has Postgres parse each statement, and reads from the parse tree which operators and
// functions the statement calls, and with which types. It creates all of these, with exactly those
// types, in a schema at the front of the search_path, and types and tables of the same names. Then
// Postgres parses the statement again, and the statement may depend on nothing in that schema.
package names

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements are those of a package.
type Statements struct {
	Dir   string   // the directory of the Go files that have them, if not empty
	Texts []string // the texts that the program makes of those with places to fill
	// pairs of a place to fill, such as {table}, and what stands there in all of them
	Fill  []string
	Apart []string // files whose statements are of another engine's catalog, which is not here
	Paths bool     // their tables are found by the search_path, so another role's may come first
}

// Check checks statements. It also fails the test for a statement in the Go files whose places
// neither Fill nor Texts fills, so that a new statement is never left out.
func Check(t testing.TB, pool *pgxpool.Pool, s Statements) {
	t.Helper()
	var found []source
	if s.Dir != "" {
		var err error
		if found, err = sources(s.Dir); err != nil {
			t.Fatal(err)
		}
	}
	found = slices.DeleteFunc(found, func(f source) bool {
		return slices.Contains(s.Apart, filepath.Base(f.at.Filename))
	})
	problems, tables, texts := s.gather(found)
	more, err := find(t.Context(), pool, !s.Paths, tables, texts)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(problems, more...) {
		t.Error(p)
	}
}

// gather tells the statements that make tables from the others.
func (s Statements) gather(found []source) (problems, tables, texts []string) {
	texts = slices.Clone(s.Texts)
	r := strings.NewReplacer(s.Fill...)
	for _, f := range found {
		f.text = r.Replace(f.text)
		switch {
		case strings.HasPrefix(strings.TrimSpace(f.text), "CREATE TABLE"):
			tables = append(tables, f.text)
		case !hole.MatchString(f.text):
			texts = append(texts, f.text)
		case !slices.ContainsFunc(s.Texts, f.made):
			problems = append(problems, fmt.Sprintf(
				"%s: this statement is not checked: say what fills its places, or add its text:\n%s",
				f.at, f.text))
		}
	}
	return problems, tables, texts
}

// A walk is a transaction in which statements are looked at. It is rolled back.
type walk struct {
	pgx.Tx
	own     string // the schema of the statements' tables
	hostile string // another role's
}

// find says what is wrong with statements.
func find(
	ctx context.Context, pool *pgxpool.Pool, hideTables bool, tables, texts []string,
) (problems []string, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	w := walk{Tx: tx}
	if err := w.QueryRow(ctx, `SELECT current_schema()`).Scan(&w.own); err != nil {
		return nil, err
	}
	w.hostile = w.own + "_hostile"
	for _, sql := range append(tables, "CREATE SCHEMA "+w.hostile) {
		if _, err := w.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	var bodies []body
	created := map[string]bool{}
	for i, text := range texts {
		of, err := w.bodies(ctx, i, text)
		if err != nil {
			return nil, fmt.Errorf("%w:\n%s", err, text)
		}
		bodies = append(bodies, of...)
		for _, b := range of {
			calls, err := w.calls(ctx, b)
			if err != nil {
				return nil, fmt.Errorf("%w:\n%s", err, b.sql)
			}
			for _, c := range calls {
				if created[c.name] {
					continue
				}
				created[c.name] = true
				if err := w.try(ctx, c.create); err != nil {
					return nil, fmt.Errorf("%s: %w", c.create, err)
				}
			}
		}
	}
	if err := w.shadow(ctx, hideTables); err != nil {
		return nil, err
	}
	for _, b := range bodies {
		found, err := w.uses(ctx, b)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			problems = append(problems, fmt.Sprintf(
				"another role could have it use %s:\n%s", strings.Join(found, ", "), b.sql))
		}
	}
	return problems, nil
}

// uses tells what a statement would use of the hostile schema.
func (w walk) uses(ctx context.Context, b body) ([]string, error) {
	if err := w.parse(ctx, b); err != nil {
		return []string{"what makes it fail: " + err.Error()}, nil
	}
	rows, err := w.Query(ctx, `SELECT DISTINCT pg_describe_object(refclassid, refobjid, refobjsubid)
		FROM pg_depend WHERE classid = 'pg_proc'::regclass::oid AND objid = $1::text::regproc::oid
			AND (pg_identify_object(refclassid, refobjid, 0)).schema = $2::text`, b.name, w.hostile)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// A body is a statement as the body of a function, which Postgres keeps parsed.
type body struct {
	name, params, sql string
}

var (
	explain = regexp.MustCompile(`^\s*EXPLAIN \([^)]*\)`)
	param   = regexp.MustCompile(`\$(\d+)`)
)

// bodies are a statement with parameters, and one with literals in place of them, as
// pgx.QueryExecModeSimpleProtocol sends it.
func (w walk) bodies(ctx context.Context, nr int, text string) ([]body, error) {
	text = explain.ReplaceAllString(text, "")
	sd, err := w.Conn().PgConn().Prepare(ctx, "", text, nil)
	if err != nil {
		return nil, err
	}
	types := make([]string, len(sd.ParamOIDs))
	for i, oid := range sd.ParamOIDs {
		if types[i], err = w.typeName(ctx, oid); err != nil {
			return nil, err
		}
	}
	bodies := []body{{fmt.Sprintf("%s.weir_names_%d", w.own, nr), strings.Join(types, ", "), text}}
	if len(types) > 0 {
		literals := param.ReplaceAllStringFunc(text, func(p string) string {
			var n int
			_, _ = fmt.Sscanf(p, "$%d", &n)
			switch sd.ParamOIDs[n-1] {
			case pgtype.Float8OID:
				return "1.5"
			case pgtype.Int8OID, pgtype.Int4OID, pgtype.Int2OID:
				return "1"
			case pgtype.BoolOID:
				return "true"
			}
			return "NULL"
		})
		bodies = append(bodies, body{bodies[0].name + "_literals", "", literals})
	}
	for _, b := range bodies {
		if err := w.parse(ctx, b); err != nil {
			return nil, err
		}
	}
	return bodies, nil
}

// parse has Postgres parse a statement anew.
func (w walk) parse(ctx context.Context, b body) error {
	return w.try(ctx, `CREATE OR REPLACE FUNCTION `+b.name+`(`+b.params+`) RETURNS void LANGUAGE sql
		BEGIN ATOMIC `+b.sql+`; END`)
}

// try runs what may fail.
func (w walk) try(ctx context.Context, sql string) error {
	return pgx.BeginFunc(ctx, w.Tx, func(tx pgx.Tx) error {
		_, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll()
		var e *pgconn.PgError
		if errors.As(err, &e) && e.Detail != "" {
			err = fmt.Errorf("%w (%s)", err, e.Detail)
		}
		return err
	})
}

// typeName is the name of a type, in its schema if that is not pg_catalog.
func (w walk) typeName(ctx context.Context, oid uint32) (name string, err error) {
	err = w.QueryRow(ctx, `SELECT CASE nspname WHEN 'pg_catalog' THEN format_type(t.oid, NULL)
		ELSE quote_ident(nspname) || '.' || quote_ident(typname) END
		FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace WHERE t.oid = $1`, oid).
		Scan(&name)
	return name, err
}

// A call is an operator or a function for which a statement looks by its name and the types of what
// it is given.
type call struct{ name, create string }

// calls returns the operators and functions that a parsed statement calls, to be created in the
// hostile schema. None of them is ever run.
func (w walk) calls(ctx context.Context, b body) (all []call, err error) {
	var text string
	const sql = `SELECT prosqlbody::text FROM pg_proc WHERE oid = $1::text::regproc::oid`
	if err := w.QueryRow(ctx, sql, b.name).Scan(&text); err != nil {
		return nil, err
	}
	tree, err := parse(text)
	if err != nil {
		return nil, err
	}
	nodes(tree, func(n *node) {
		const byName = "0" // COERCE_EXPLICIT_CALL
		var made []call
		var more error
		switch n.name {
		case "OPEXPR", "DISTINCTEXPR":
			made, more = w.operator(ctx, n.oid("opno"), n.typ(), false, n.list("args"))
		case "NULLIFEXPR":
			made, more = w.operator(ctx, n.oid("opno"), boolean, false, n.list("args"))
		case "SCALARARRAYOPEXPR":
			made, more = w.operator(ctx, n.oid("opno"), boolean, true, n.list("args"))
		case "ROWCOMPARE", "ROWCOMPAREEXPR":
			ops, _ := n.fields["opnos"].([]any)
			left, right := n.list("largs"), n.list("rargs")
			for i := range left {
				word, _ := ops[i+1].(string) // after "o"
				of := &node{fields: map[string]any{"opno": word}}
				some, err := w.operator(ctx, of.oid("opno"), boolean, false,
					[]*node{left[i], right[i]})
				made, more = append(made, some...), errors.Join(more, err)
			}
		case "FUNCEXPR":
			if n.fields["funcformat"] == byName {
				made, more = w.function(ctx, n.oid("funcid"), n.typ(), n.list("args"))
			}
		case "AGGREF":
			made, more = w.function(ctx, n.oid("aggfnoid"), n.typ(), n.list("args"))
		case "WINDOWFUNC":
			made, more = w.function(ctx, n.oid("winfnoid"), n.typ(), n.list("args"))
		}
		all, err = append(all, made...), errors.Join(err, more)
	})
	return all, err
}

// lists are the lists of types with which a call may match exactly. A constant may be a literal
// without a type: then Postgres gives it the type of the other operand, or takes it for a string.
// With elements, the second argument is an array, and the type of its elements counts.
func (w walk) lists(
	ctx context.Context, args []*node, elements bool,
) (lists [][]string, err error) {
	oids := make([]uint32, len(args))
	for i, a := range args {
		oids[i] = a.written().typ()
		if elements && i == 1 {
			const sql = `SELECT typelem FROM pg_type WHERE oid = $1`
			if err := w.QueryRow(ctx, sql, oids[i]).Scan(&oids[i]); err != nil {
				return nil, err
			}
		}
	}
	all := [][]uint32{oids}
	for i, a := range args {
		if a.written().name != "CONST" {
			continue
		}
		for _, as := range append([]uint32{pgtype.TextOID, pgtype.VarcharOID, pgtype.NameOID},
			oids...) {
			other := slices.Clone(oids)
			other[i] = as
			all = append(all, other)
		}
	}
	for _, oids := range all {
		var list []string
		for _, oid := range oids {
			var pseudo bool
			const sql = `SELECT typtype = 'p' FROM pg_type WHERE oid = $1`
			if err := w.QueryRow(ctx, sql, oid).Scan(&pseudo); err != nil {
				return nil, fmt.Errorf("type %d: %w", oid, err)
			}
			if pseudo { // a function of another role cannot have it
				break
			}
			name, err := w.typeName(ctx, oid)
			if err != nil {
				return nil, err
			}
			list = append(list, name)
		}
		if len(list) == len(oids) {
			lists = append(lists, list)
		}
	}
	return lists, nil
}

func (w walk) operator(
	ctx context.Context, op, returns uint32, elements bool, args []*node,
) (all []call, err error) {
	var name, result string
	const sql = `SELECT oprname FROM pg_operator WHERE oid = $1`
	if err := w.QueryRow(ctx, sql, op).Scan(&name); err != nil {
		return nil, err
	}
	if result, err = w.typeName(ctx, returns); err != nil {
		return nil, err
	}
	lists, err := w.lists(ctx, args, elements)
	if err != nil {
		return nil, err
	}
	for _, l := range lists {
		function := fmt.Sprintf(`%s."%s, which is %s"`, w.hostile, name, result)
		sides := "rightarg = " + l[len(l)-1]
		if len(l) == 2 {
			sides = "leftarg = " + l[0] + ", " + sides
		}
		all = append(all, call{function + sides, raises(function, l, result)},
			call{name + sides, fmt.Sprintf(`CREATE OPERATOR %s.%s (%s, function = %s)`,
				w.hostile, name, sides, function)})
	}
	return all, nil
}

func (w walk) function(
	ctx context.Context, f, returns uint32, args []*node,
) (all []call, err error) {
	var name, result string
	const sql = `SELECT quote_ident(proname) FROM pg_proc WHERE oid = $1`
	if err := w.QueryRow(ctx, sql, f).Scan(&name); err != nil {
		return nil, err
	}
	if result, err = w.typeName(ctx, returns); err != nil {
		return nil, err
	}
	lists, err := w.lists(ctx, args, false)
	for _, l := range lists {
		all = append(all, call{fmt.Sprint(name, l), raises(w.hostile+"."+name, l, result)})
	}
	return all, err
}
