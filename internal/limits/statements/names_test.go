package statements

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	check "github.com/weir-go/weir/internal/test/names"
	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestStatementsUseOnlyNamesOfPostgres(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	// Distributed tables have it, too: see two_phase.go.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE weir_two_phase ()`); err != nil {
		t.Fatal(err)
	}
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
	all := map[string]string{}
	textsOf(all, "", reflect.ValueOf(New(schema, false)))
	textsOf(all, "portable many.", reflect.ValueOf(New(schema, true).Many))
	delete(all, "twoPhaseIf") // its body is a string
	delete(all, "ranges")     // its catalog is Citus'
	texts := slices.Collect(maps.Values(all))
	check.Check(t, pool, check.Statements{Texts: texts})
}
