package ratelimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
)

// answer hands a decision to the caller. If the caller has left, what was taken is given back.
func (c *Coalesced) answer(w *waiter) {
	if w.state.CompareAndSwap(taken, answered) {
		w.done <- struct{}{}
		return
	}
	defer c.decided()
	if res, err := w.result(context.Background()); err == nil && res.OK {
		c.gives.add(res)
	}
}

// gives gives back what was taken for callers that have left. Each row has a goroutine, which gives
// back together what has come for it meanwhile.
type gives struct {
	c  *Coalesced
	mu sync.Mutex
	of map[where.Row][]give // has the rows that have a goroutine
}

type give struct {
	change
	until time.Time // until then it is tried
}

// giveFor is how long a give-back is tried while other transactions hold its row, or errors say
// that nothing was committed.
const giveFor = time.Minute

// add counts what is given back to each row like a call that is not decided yet, which bounds how
// much there is.
func (g *gives) add(res Result) {
	rows, _ := res.taken()
	until := time.Now().Add(giveFor)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[where.Row][]give{}
	}
	for _, c := range rows {
		g.c.waiting.Add(1)
		g.c.running.Add(1)
		some, runs := g.of[c.Row]
		g.of[c.Row] = append(some, give{c, until})
		if !runs {
			go g.run(c.Row)
		}
	}
}

func (g *gives) run(at where.Row) {
	for tries := 0; ; tries++ {
		g.mu.Lock()
		some := g.of[at]
		if len(some) == 0 {
			delete(g.of, at)
			g.mu.Unlock()
			return
		}
		n := min(len(some), mostTogether)
		some, g.of[at] = some[:n:n], some[n:]
		g.mu.Unlock()
		last := some[n-1].until
		wanted := func() bool { return !g.c.ended.Load() && time.Now().Before(last) }
		rows := make([]change, n)
		for i := range some {
			rows[i] = some[i].change
		}
		back := joined(rows)
		err := g.c.single(tries, true, wanted, func(ctx context.Context, x executor) error {
			return g.c.l.giveBack(ctx, x, back)
		})
		if err == nil || errors.Is(err, ErrOutcomeUnknown) || !wanted() {
			some, tries = nil, -1
		}
		now := time.Now()
		some = slices.DeleteFunc(some, func(one give) bool { return now.After(one.until) })
		g.mu.Lock()
		g.of[at] = append(some, g.of[at]...)
		g.mu.Unlock()
		for range n - len(some) {
			g.c.decided()
		}
	}
}
