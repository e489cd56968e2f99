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

// On busy processors each call of others takes its time, and more calls come meanwhile. The batch is
// soon decided all the same.
func TestALaneGathersForAMoment(t *testing.T) {
	t.Parallel()
	n, calls := &lane{}, make([]*waiter, mostTogether-1)
	var came atomic.Int64
	var gathered atomic.Bool
	var others sync.WaitGroup
	end := time.Now().Add(5 * time.Second)
	goesOn := func() bool { return !gathered.Load() && time.Now().Before(end) }
	for range 2 * runtime.GOMAXPROCS(0) {
		others.Go(func() {
			for goesOn() {
				continue
			}
		})
	}
	for range 8 {
		others.Go(func() {
			for goesOn() {
				n.mu.Lock()
				n.queue = calls[:came.Add(1)%int64(len(calls))]
				n.mu.Unlock()
				runtime.Gosched()
			}
		})
	}
	n.gather()
	gathered.Store(true)
	if time.Now().After(end) {
		t.Error("it has gathered for as long as calls came")
	}
	others.Wait()
}
