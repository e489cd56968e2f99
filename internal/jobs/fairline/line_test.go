package fairline

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// The more patient a line is, the longer jobs of high priority go first: also one that is patient for
// ever.
func TestPatienceOrdersByPriority(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("patient", ratelimit.TokenBucket{Rate: 1, Period: time.Second, MaxReserved: ratelimit.Tokens(1)})
	due := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, patience := range []time.Duration{1, time.Hour, 876_000 * time.Hour, math.MaxInt64} {
		l, err := Line{Limit: limit, Patience: patience}.checked()
		if err != nil {
			t.Fatal(err)
		}
		for priority := 1; priority < 4; priority++ {
			if before, after := l.place(priority, due), l.place(priority+1, due); !before.Before(after) {
				t.Errorf("with a Patience of %v, priority %d stands at %v and %d at %v",
					patience, priority, before, priority+1, after)
			}
		}
	}
}
