package ratelimit

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What calls have made in a bubble is not used by others: the runtime would end the process.
func TestCallsInABubbleLeaveNothingToOthers(t *testing.T) {
	t.Parallel()
	k := MustDefine("bubble", TokenBucket{Rate: 10, Period: time.Second}).For("k")
	call := func(t *testing.T) {
		c := unconnected(t, func() {})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if res, err := c.RateLimit(t.Context(), k); err == nil {
					t.Errorf("%+v without a server", res)
				}
			})
		}
		wg.Wait()
		c.Close()
	}
	synctest.Test(t, call)
	synctest.Test(t, call)
	call(t)
}
