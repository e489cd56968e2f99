package inspect

import (
	"slices"
	"testing"

	"github.com/weir-go/weir/internal/test/engines"
)

// Statements for engines that refuse those of plain Postgres are taken by all of them but Aurora
// DSQL, which has no COLLATE.
func TestPortableStatementsKeepToWhatOtherEnginesTake(t *testing.T) {
	t.Parallel()
	const dsql = "what Aurora DSQL does not have"
	for sql, want := range map[string][]string{
		nextNameSQL: nil, someKeysSQL: {dsql}, rowsSQL: {dsql},
	} {
		if found := engines.Problems(sql); !slices.Equal(found, want) {
			t.Errorf("%s:\n%q, want %q", sql, found, want)
		}
	}
}
