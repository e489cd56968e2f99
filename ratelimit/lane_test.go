package ratelimit

import (
	"runtime"
	"sync"
	"sync/atomic"
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

// However many calls come while a batch gathers, it is soon decided.
func TestALaneGathersForAMoment(t *testing.T) {
	t.Parallel()
	n, calls := &lane{}, make([]*waiter, mostTogether-1)
	var came, gathered atomic.Int64
	var others sync.WaitGroup
	for range 8 { // so that some run whenever it lets others run
		others.Go(func() {
			for gathered.Load() == 0 && came.Load() < 1<<20 {
				n.mu.Lock()
				n.queue = calls[:came.Add(1)%int64(len(calls))]
				n.mu.Unlock()
				runtime.Gosched()
			}
		})
	}
	n.gather()
	gathered.Store(1)
	others.Wait()
	if came.Load() >= 1<<20 {
		t.Error("it has gathered for as long as calls came")
	}
}
