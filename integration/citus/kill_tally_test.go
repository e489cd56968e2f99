package citus

import (
	"errors"
	"sync"
	"testing"

	"github.com/weir-go/weir/ratelimit"
)

// callUntilStopped has callers make numbered calls, until stop is called and the calls under way have
// ended. Caller n makes those whose number leaves n when it is divided by the number of callers.
func callUntilStopped(callers int, call func(id int)) (stop func()) {
	stopping := make(chan struct{})
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			for id := n; ; id += callers {
				select {
				case <-stopping:
					return
				default:
					call(id)
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(stopping)
		all.Wait()
	})
}

// tally is what callers were told.
type tally struct{ through, not, unknown int }

// tallies are those of each way to call.
type tallies map[string]*tally

func (all tallies) add(way string, err error) {
	n := all[way]
	if n == nil {
		n = &tally{}
		all[way] = n
	}
	switch {
	case err == nil:
		n.through++
	case errors.Is(err, ratelimit.ErrOutcomeUnknown):
		n.unknown++
	default:
		n.not++
	}
}

// report fails a test in which a way never got through, or in which no call met a kill.
func (all tallies) report(t *testing.T, kills int) {
	t.Helper()
	calls, met := 0, 0
	for way, n := range all {
		t.Logf("%-16s %5d got through, %3d did not, %3d unknown", way, n.through, n.not, n.unknown)
		if n.through == 0 {
			t.Errorf("%s: no call got through", way)
		}
		calls, met = calls+n.through+n.not+n.unknown, met+n.not+n.unknown
	}
	t.Logf("%d kills, %d calls, %d of them met one", kills, calls, met)
	if met == 0 {
		t.Error("no call met a kill")
	}
}
