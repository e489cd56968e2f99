package ratelimit

import (
	"context"
	"sync"
	"time"
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

// gives are takes of callers that have left. One goroutine gives them back, one by one.
type gives struct {
	c       *Coalesced
	mu      sync.Mutex
	queue   []give
	running bool
}

type give struct {
	res   Result
	until time.Time // until then it is tried
}

// giveFor is how long a give-back is tried while other transactions hold its row.
const giveFor = time.Minute

func (g *gives) add(res Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, give{res, time.Now().Add(giveFor)})
	if !g.running {
		g.running = true
		g.c.running.Add(1)
		go g.run()
	}
}

func (g *gives) run() {
	defer g.c.running.Done()
	for {
		g.mu.Lock()
		if len(g.queue) == 0 {
			g.queue, g.running = nil, false
			g.mu.Unlock()
			return
		}
		one := g.queue[0]
		g.queue = g.queue[1:]
		g.mu.Unlock()
		err := g.c.single(0, nil, func(ctx context.Context, x executor) error {
			return g.c.l.giveBack(ctx, x, one.res)
		})
		if g.c.l.stuck(err) && time.Now().Before(one.until) && !g.c.ended.Load() {
			g.mu.Lock()
			g.queue = append(g.queue, one)
			g.mu.Unlock()
		}
	}
}
