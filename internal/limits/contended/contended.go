// Package contended is what a process remembers of conflicts between transactions: the rows that
// transactions lose to each other, which are worth queueing for, and the limits that need more
// shards. It knows neither transactions nor statements: the caller tells it of both. It holds a
// bounded number of rows, and is safe for concurrent use.
//
// Above READ COMMITTED, callers do not queue for a row. As soon as the transaction that holds it
// commits, all that wait for it fail with 40001, and to run them again at once makes it worse. So a
// transaction that has lost a row waits for the advisory lock of that row before it takes its
// snapshot: see queue.go in package statements. While a row is contended, first attempts of this
// process wait there as well.
//
// Only a conflict on the row makes it contended. If a wait did so too, the queue would keep itself
// alive.
package contended

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
)

const (
	// after the last conflict: long enough for callers that pause for a second
	contendedFor  = 2500 * time.Millisecond
	mostContended = 1000
)

// Rows are the rows that transactions lose to each other. The zero Rows are none.
type Rows struct {
	mu   sync.Mutex
	rows map[where.Row]time.Time // until when each is contended
	// how many transactions starve for each: see Starve
	starved map[where.Row]int
}

// Note notes that a transaction has lost a row.
func (c *Rows) Note(r where.Row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = make(map[where.Row]time.Time)
	}
	now := time.Now()
	if len(c.rows) >= mostContended {
		maps.DeleteFunc(c.rows, func(_ where.Row, until time.Time) bool { return now.After(until) })
	}
	if _, known := c.rows[r]; known || len(c.rows) < mostContended {
		r.Key = strings.Clone(r.Key) // which may be a small part of something large
		c.rows[r] = now.Add(contendedFor)
	}
}

// Has reports whether a row is contended, and worth queueing for.
func (c *Rows) Has(r where.Row) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	until, ok := c.rows[r]
	return ok && time.Now().Before(until)
}

// Starve notes that a transaction has lost rows again and again, and still wants them, until done
// is called.
func (c *Rows) Starve(rows []where.Row) (done func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.starved == nil {
			c.starved = make(map[where.Row]int)
		}
		for _, r := range rows {
			if c.starved[r] += n; c.starved[r] == 0 {
				delete(c.starved, r)
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// Starves reports whether a transaction starves for a row.
func (c *Rows) Starves(r where.Row) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starved[r] > 0
}
