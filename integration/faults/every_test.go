package faults

import (
	"sync/atomic"
	"testing"
)

// Every kind of fault hits one application, whose limits have shards. All the while an operator
// pauses limits and changes their shards, work is reserved, and half of what was taken is given
// back.
func TestFaultsOfEveryKindOverShards(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t)
	f.load.shards = max(several, f.load.shards)
	p := newProxy(t, f)
	kinds := []func(t *testing.T, f *fixture){
		p.cutting(beforeCommit, afterCommit, withCommit),
		ending(func(f *fixture) error { return f.server.Kill() }),
		killABackend,
		func(t *testing.T, f *fixture) { f.pelt(t, 50, terminateOne) },
		func(t *testing.T, f *fixture) { killProcesses(t, f) },
	}
	f.run(t, fault{rounds: len(kinds), hits: []class{away, unknown}, pools: p.pools(t, f),
		inject: func(t *testing.T, f *fixture) {
			kinds[f.rounds%len(kinds)](t, f)
			f.awaitOperator(t)
		}})
}

// awaitOperator waits until once more a limit was paused, one got other shards, and work was
// settled.
func (f *fixture) awaitOperator(t *testing.T) {
	t.Helper()
	did := f.app.done
	for _, counter := range []*atomic.Int64{&did.pauses, &did.reshardings, &did.settled} {
		before := counter.Load()
		for n := 0; counter.Load() == before; n++ {
			if n == 10_000 {
				t.Fatalf("%d settled, %d pauses and %d changes of shards, and no more in ten thousand grants",
					did.settled.Load(), did.pauses.Load(), did.reshardings.Load())
			}
			f.callers.await(t, granted, 1)
		}
	}
}
