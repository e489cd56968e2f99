package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

const (
	seconds    = 300 // that Decisions looks back
	mostLimits = 200 // that it tells apart
)

// Decisions counts what this process has decided in the last five minutes, per second and per
// limit, and which keys were denied most. Set it as [ratelimit.Config.Observer], with observe.All
// if there are others, and as [Config.Decisions].
//
// Its size is bounded: 200 limits of 5 kB each, and 20 keys of each limit in each half of the five
// minutes. Further limits are counted together, without a name. It needs less than a microsecond
// per call. The zero value is ready for use, and safe for concurrent use.
type Decisions struct {
	mu     sync.RWMutex
	limits map[string]*counts
}

// tally is what was decided in a second.
type tally struct {
	Granted uint32 `json:"granted"` // now
	Ahead   uint32 `json:"ahead"`   // granted for later: reserved
	Denied  uint32 `json:"denied"`  // by this limit; or would have been, by one in the shadow
	Failed  uint32 `json:"failed"`  // not decided, because of an error
}

func (t *tally) add(s tally) {
	t.Granted += s.Granted
	t.Ahead += s.Ahead
	t.Denied += s.Denied
	t.Failed += s.Failed
}

// counts are those of a limit.
type counts struct {
	mu     sync.Mutex
	by     [seconds]tally
	last   int64 // the second that was counted last
	denied [2]frequent
	half   int64 // the number of the half that denied[half%2] is of
}

// Decided implements [ratelimit.Observer].
func (d *Decisions) Decided(ctx context.Context, e ratelimit.DecidedEvent) {
	now := time.Now()
	switch {
	case errors.Is(e.Err, context.Canceled) || e.Err != nil && errors.Is(ctx.Err(), context.Canceled):
		return // the caller has gone
	case e.Err != nil:
		for _, r := range e.Requests {
			d.of(r.Limit().Name()).count(now, tally{Failed: 1}, "")
		}
		return
	case len(e.Result.Outcomes) == 0: // that of a lease
		t, key := tally{Granted: 1}, ""
		for _, r := range e.Requests {
			if !e.Result.OK {
				t, key = tally{Denied: 1}, r.Key()
			}
			d.of(r.Limit().Name()).count(now, t, key)
		}
	}
	for i := range e.Result.Outcomes {
		switch o := &e.Result.Outcomes[i]; {
		case !o.OK:
			d.of(o.Limit).count(now, tally{Denied: 1}, o.Key)
		case e.Result.OK && !o.RunAt.IsZero():
			d.of(o.Limit).count(now, tally{Ahead: 1}, "")
		case e.Result.OK:
			d.of(o.Limit).count(now, tally{Granted: 1}, "")
		}
	}
}

// Transacted implements [ratelimit.Observer].
func (d *Decisions) Transacted(context.Context, ratelimit.TransactedEvent) {}

// of finds the counts of a limit, or makes them.
func (d *Decisions) of(limit string) *counts {
	d.mu.RLock()
	c := d.limits[limit]
	d.mu.RUnlock()
	if c != nil {
		return c
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limits == nil {
		d.limits = make(map[string]*counts)
	}
	if c = d.limits[limit]; c == nil && len(d.limits) >= mostLimits {
		limit = ""
		c = d.limits[limit]
	}
	if c == nil {
		c = &counts{}
		d.limits[limit] = c
	}
	return c
}

// count adds t. key is one that was denied, if any was.
func (c *counts) count(now time.Time, t tally, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.turn(now)
	c.by[s%seconds].add(t)
	if t.Denied > 0 {
		c.denied[c.half%2].add(key)
	}
}

// turn forgets what is over five minutes old, and returns the second to count in: a clock that is
// set back counts in the last one.
func (c *counts) turn(now time.Time) int64 {
	s := max(now.Unix(), c.last)
	for i := max(c.last+1, s-seconds+1); i <= s; i++ {
		c.by[i%seconds] = tally{}
	}
	c.last = s
	if half := s / (seconds / 2); half != c.half {
		if half != c.half+1 {
			c.denied[c.half%2] = nil
		}
		c.denied[half%2] = nil
		c.half = half
	}
	return s
}

// last adds up the last n seconds of a limit.
func (d *Decisions) lastOf(limit string, now time.Time, n int) (sum tally) {
	for _, t := range d.history(limit, now)[seconds-n:] {
		sum.add(t)
	}
	return sum
}

// history has the last five minutes of a limit, second by second, the present one last.
func (d *Decisions) history(limit string, now time.Time) []tally {
	list := make([]tally, seconds)
	c := d.found(limit)
	if c == nil {
		return list
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.turn(now)
	for i := range list {
		list[i] = c.by[(s+1+int64(i))%seconds]
	}
	return list
}

// most lists the keys that were denied most in the last two and a half to five minutes.
func (d *Decisions) most(limit string, now time.Time, n int) []often {
	c := d.found(limit)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(now)
	return top(n, c.denied[0], c.denied[1])
}

func (d *Decisions) found(limit string) *counts {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.limits[limit]
}
