package spread

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
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

// A shard that waits for a merge, and one whose own debt ends at the same time: what flows into the
// second until then is kept.
func TestMergingAShardThatWaitsWithOneThatOwesLosesNothing(t *testing.T) {
	t.Parallel()
	hour := time.Hour.Microseconds()
	rule := &algebra.Rule{Capacity: 12, Rate: 12, Period: hour}
	row := func(value float64, paused int64) algebra.Balance {
		return algebra.Balance{Exists: true, Value: value, TS: hour, PausedUntil: paused}
	}
	// Each half gets 6 an hour: the first has what flows in until then, and the second repays 6.
	merged := Merged(rule, []algebra.Balance{row(2, 2*hour), row(-6, algebra.Open)}, 1)
	if got := rule.At(merged[0], 2*hour).Value; math.Abs(got-2) > 1e-6 {
		t.Errorf("%v tokens after an hour, want 2", got)
	}
	if merged[0].PausedUntil != 2*hour {
		t.Errorf("paused until %v, want that the shard waits for an hour", merged[0].PausedUntil)
	}
}
