package integration

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hung ends a test that hangs. No test expects anything to happen faster than that.
const hung = 2 * time.Minute

// parked is the context of a call, and tells when the call waits for its answer.
type parked struct {
	context.Context
	once  sync.Once
	waits chan struct{} // closed by then
}

func park(ctx context.Context) *parked { return &parked{Context: ctx, waits: make(chan struct{})} }

// Done is asked for by who is about to wait: a call of a Coalesced and of a Lease has its place in
// line before.
func (p *parked) Done() <-chan struct{} {
	p.once.Do(func() { close(p.waits) })
	return p.Context.Done()
}

func (p *parked) wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.waits:
	case <-time.After(hung):
		t.Fatal("the call has neither ended nor does it wait")
	}
}

// gate holds up who wants a connection of a pool while it is shut.
type gate struct {
	isShut atomic.Bool
	came   chan struct{}
	pass   chan struct{}
}

func newGate() *gate { return &gate{came: make(chan struct{}, 1000), pass: make(chan struct{})} }

func (g *gate) through(cfg *pgxpool.Config) {
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		if g.isShut.Load() {
			g.came <- struct{}{}
			<-g.pass
		}
		return true, nil
	}
}

func (g *gate) shut() { g.isShut.Store(true) }

// next waits until somebody stands at the gate.
func (g *gate) next(t testing.TB) {
	t.Helper()
	select {
	case <-g.came:
	case <-time.After(hung):
		g.open()
		t.Fatal("nobody wants a connection")
	}
}

// let lets one through.
func (g *gate) let() { g.pass <- struct{}{} }

// open lets everybody through from now on.
func (g *gate) open() {
	if g.isShut.Swap(false) {
		close(g.pass)
	}
}
