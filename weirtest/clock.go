package weirtest

import (
	"context"
	"sync"
	"time"
)

// Clock is a clock that stands still until it is set. Use it in a [Limiter], and as Clock:
// clock.Now in [ratelimit.Config] and other Configs. The zero Clock shows noon of 1 January 2026,
// UTC. It is safe for concurrent use.
type Clock struct {
	mu    sync.Mutex
	at    time.Time
	moved chan struct{} // closed when it is set; nil if nobody waits
}

// NewClock makes a clock that stands at t.
func NewClock(t time.Time) *Clock {
	c := new(Clock)
	c.Set(t)
	return c
}

// Now is the time that it was set to, in whole microseconds, as in Postgres.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// Set sets the clock, forward or back.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(t)
}

// Add moves the clock by d.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(c.now().Add(d))
}

func (c *Clock) now() time.Time {
	if c.at.IsZero() {
		return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	}
	return c.at
}

func (c *Clock) set(t time.Time) {
	c.at = t.UTC().Truncate(time.Microsecond)
	if c.moved != nil {
		close(c.moved)
		c.moved = nil
	}
}

// wait returns when the clock has come to t, or with the error of ctx.
func (c *Clock) wait(ctx context.Context, t time.Time) error {
	for {
		c.mu.Lock()
		if !c.now().Before(t) {
			c.mu.Unlock()
			return nil
		}
		if c.moved == nil {
			c.moved = make(chan struct{})
		}
		moved := c.moved
		c.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
