package riverjob_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/jobs/riverjob"
)

// One thing is under way at a time, and it begins no sooner than the gap after it began last.
func TestAPaceKeepsThingsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p riverjob.Pace
		var began []time.Duration
		start := time.Now()
		for range 10 {
			p.Begin(3*time.Second, time.Minute, func(ctx context.Context) {
				began = append(began, time.Since(start))
				if len(began) == 1 {
					time.Sleep(4500 * time.Millisecond)
				}
				if d, ok := ctx.Deadline(); !ok || time.Until(d) > time.Minute {
					t.Error(d, ok)
				}
			})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if len(began) != 3 || began[1] != 5*time.Second || began[2] != 8*time.Second {
			t.Errorf("began after %v", began)
		}
	})
}
