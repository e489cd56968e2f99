package ratelimit

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/names"
	"github.com/weir-go/weir/internal/pgtest"
)

func TestStatementsUseOnlyNamesOfPostgres(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	// Distributed tables have it, too: see two_phase.go.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE weir_two_phase ()`); err != nil {
		t.Fatal(err)
	}
	s := newStatements(pool.Config().ConnConfig.RuntimeParams["search_path"])
	var texts []string
	var add func(v reflect.Value)
	add = func(v reflect.Value) {
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Struct:
				add(f)
			case reflect.String:
				if v.Type().Field(i).Name != "prefix" && f.String() != "" && !strings.HasPrefix(f.String(), "DO ") {
					texts = append(texts, f.String())
				}
			}
		}
	}
	add(reflect.ValueOf(s))
	for _, portable := range []bool{false, true} {
		add(reflect.ValueOf(newManyTexts(s.prefix, portable)))
	}
	names.Check(t, pool, names.Statements{Dir: ".", Texts: texts, Fill: []string{
		"{clock8}", "coalesce($8::timestamptz, pg_catalog.clock_timestamp())", // of manyRows
	}})
}
