package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// result is how an op ended for its caller.
type result struct {
	ID    string
	Class class
	Text  string
	Bound account
	Again bool // denied, and to come again in a moment
}

func resultOf(id string, err error) result {
	r := result{ID: id, Class: classify(err)}
	if err != nil {
		r.Text = err.Error()
	}
	if d := (*ratelimit.DeniedError)(nil); errors.As(err, &d) {
		r.Bound, r.Again = account{d.Limit, d.Key}, d.RetryAfter() < 10*time.Second
	}
	return r
}

// witness hears of every op, before and after.
type witness interface {
	begin(o op)
	end(r result)
}

// callers is what all callers of a test were told.
type callers struct {
	mu      sync.Mutex
	records map[string]*record
	classes map[class]int
	moved   chan struct{} // closed at the next end
	past    tally         // of records that were forgotten
}

// tally counts the ops whose callers were not told how they ended.
type tally struct {
	committed, absent int // with ErrOutcomeUnknown
	cut               int // whose process was killed
}

func newCallers() *callers {
	return &callers{records: map[string]*record{}, classes: map[class]int{}, moved: make(chan struct{})}
}

func (c *callers) begin(o op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records[o.ID] = &record{op: o}
}

func (c *callers) end(r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec := c.records[r.ID]
	rec.class, rec.text, rec.bound, rec.again = r.Class, r.Text, r.Bound, r.Again
	c.classes[r.Class]++
	close(c.moved)
	c.moved = make(chan struct{})
}

func (c *callers) count(k class) (int, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.classes[k], c.moved
}

// await waits until n more ops have ended in class k. That must be sure to come: which callers a
// fault hits, and with which error, is luck. For that see patience.
func (c *callers) await(t testing.TB, k class, n int) {
	t.Helper()
	start, _ := c.count(k)
	timeout := time.After(hung)
	for {
		now, moved := c.count(k)
		if now >= start+n {
			return
		}
		select {
		case <-moved:
		case <-timeout:
			t.Fatalf("%d of %d ops were %s within %v: %s", now-start, n, k, hung, c)
		}
	}
}

func (c *callers) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(c.classes)) {
		parts = append(parts, fmt.Sprintf("%d %s", c.classes[k], k))
	}
	return strings.Join(parts, ", ")
}

// tally is of all that was audited.
func (c *callers) tally() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.past
	for _, r := range c.records {
		switch {
		case r.class == open:
			n.cut++
		case r.class == unknown && r.there:
			n.committed++
		case r.class == unknown:
			n.absent++
		}
	}
	return n
}

// forget starts a new book; the counts stay.
func (c *callers) forget() {
	n := c.tally()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.past = n
	clear(c.records)
}

// load keeps an application busy.
type load struct {
	app     application
	desk    *desk
	witness witness
	shards  int                  // of each limit
	timeout func() time.Duration // of each op; nil: more than it takes
}

const workers = 10

// start begins the load; what it returns ends it, after the ops that are under way.
func (l *load) start(ctx context.Context) (stop func()) {
	stopping := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			pace := time.NewTicker(2 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-stopping:
					return
				default:
				}
				if !l.once(ctx) {
					select {
					case <-stopping:
						return
					case <-pace.C: // not to spin while the server is away
					}
				}
			}
		})
	}
	if a, ok := l.app.(*app); ok && l.shards > 1 {
		wg.Go(func() { operate(ctx, a, l.desk, l.shards, stopping) })
	}
	return sync.OnceFunc(func() {
		close(stopping)
		wg.Wait()
	})
}

func (l *load) once(ctx context.Context) bool {
	d := time.Minute
	if l.timeout != nil {
		d = l.timeout()
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	o := l.desk.next()
	o.Shards = l.shards
	o.Used = []float64{0, 0.5, 1.5}[rand.IntN(3)]
	o.Settles = len(o.Auto) == 0 && !slices.ContainsFunc(o.takes(), func(t take) bool { return !o.settles(t.Account) })
	l.witness.begin(o)
	r := resultOf(o.ID, l.app.do(ctx, &o))
	if r.Class == denied {
		l.desk.turn(r.Bound)
	}
	l.witness.end(r)
	return r.Class == granted
}
