package spread

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/algebra"
)

// Shards that wait for a merge already have what flows in until then. If they are merged once more,
// that is kept, and so is what flows into the others meanwhile.
func TestMergingTwiceLosesNothing(t *testing.T) {
	t.Parallel()
	hour := time.Hour.Microseconds()
	rule := &algebra.Rule{Capacity: 12, Rate: 12, Period: hour}
	empty := algebra.Balance{Exists: true, TS: hour, PausedUntil: algebra.Open}
	owes := empty
	owes.Value = -3 // for an hour
	was := []algebra.Balance{empty, owes, empty, empty}
	for _, steps := range [][]int{{1}, {3, 1}, {3, 2, 1}, {2, 1}} {
		rows := was
		for _, n := range steps {
			rows = Merged(rule, rows, n)
		}
		// As much as one row would have, which has the debt of the whole.
		at := 2 * hour
		if got := rule.At(rows[0], at).Value; math.Abs(got-9) > 1e-6 {
			t.Errorf("merged to %v: %v tokens after an hour, want 9", steps, got)
		}
	}
}
