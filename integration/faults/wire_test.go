package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// cutting runs the load over a proxy that goes through the modes in turn.
func cutting(t *testing.T, f *fixture, x fault, kinds ...mode) *proxy {
	t.Helper()
	p := newProxy(t, f)
	x.inject = p.cutting(kinds...)
	x.pools = p.pools(t, f)
	f.run(t, x)
	return p
}

// pools are two through the proxy: with pgx as it comes, and with every text on the wire.
func (p *proxy) pools(t *testing.T, f *fixture) []*pgxpool.Pool {
	t.Helper()
	return []*pgxpool.Pool{f.connect(t, p.through), f.connect(t, p.through, verbatim)}
}

// cutting cuts connections, a few in each mode.
func (p *proxy) cutting(kinds ...mode) func(t *testing.T, f *fixture) {
	return func(t *testing.T, f *fixture) {
		t.Helper()
		for _, m := range kinds {
			p.mode.Store(m)
			cut := p.cuts[m].Load()
			for p.cuts[m].Load() < cut+5 {
				f.callers.await(t, granted, 1)
			}
			p.mode.Store(calm)
			f.callers.await(t, granted, 1)
		}
	}
}

func TestConnectionsAreCutAtCommit(t *testing.T) {
	t.Parallel()
	ours(t)
	eachLayout(t, cutAtCommit)
}

func cutAtCommit(t *testing.T, f *fixture) {
	t.Helper()
	x := fault{rounds: 2, hits: []class{unknown}, allowed: []class{away}, met: f.bothOutcomes}
	p := cutting(t, f, x, beforeCommit, afterCommit, withCommit)
	f.mustHaveBothOutcomes(t)
	t.Logf("cut before COMMIT %d times, after %d, with it %d",
		p.cuts[beforeCommit].Load(), p.cuts[afterCommit].Load(), p.cuts[withCommit].Load())
}

func TestConnectionsAreCutAnywhere(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t)
	cutting(t, f, fault{rounds: 2, hits: []class{away}, allowed: []class{unknown}}, anywhere)
}

// A caller whose COMMIT gets no answer in its time does not know what became of it, as it may still
// arrive.
func TestTheNetworkIsSilentAtCommit(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t)
	f.load.timeout = func() time.Duration { return time.Second + rand.N(time.Second) }
	x := fault{rounds: 1, hits: []class{unknown}, allowed: []class{away, gaveUp},
		met: f.bothOutcomes}
	cutting(t, f, x, silence)
	f.mustHaveBothOutcomes(t)
}

// bothOutcomes reports whether of the transactions whose outcome was unknown some were committed,
// and some were not: then the error was needed.
func (f *fixture) bothOutcomes() bool {
	n := f.callers.tally()
	return n.committed > 0 && n.absent > 0
}

func (f *fixture) mustHaveBothOutcomes(t *testing.T) {
	t.Helper()
	n := f.callers.tally()
	fmt.Printf("faults: %s: of the unknown, %d were committed and %d were not\n", t.Name(), n.committed, n.absent)
	if !f.bothOutcomes() {
		t.Errorf("of the transactions whose outcome was unknown %d were committed and %d were not: want both",
			n.committed, n.absent)
	}
}
