package statements

import (
	"strings"
	"testing"
)

// The body of a DO is a string, and the name of a schema in it may have any character.
func TestTheNameOfASchemaDoesNotEndTheRequestForTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	sql := New(`it's$$`, true).TwoPhaseIf
	quote, _, _ := strings.Cut(strings.TrimPrefix(sql, "DO "), "BEGIN")
	if strings.Count(sql, quote) != 2 || !strings.Contains(sql, `"it's$$".weir_two_phase`) {
		t.Error(sql)
	}
}
