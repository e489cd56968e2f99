package scheduler

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Line is a limit that tenants share fairly: the jobs that [Jobs.QueueTx] inserts for it wait in
// line, and when tokens come, the tenant that has had the least goes next. Each key of the limit is
// a line of its own. It belongs into [Config.Lines] of each program that queues jobs for the limit
// or works them.
//
// [Jobs.InsertTx] may reserve of the same limit. Such jobs keep their RunAt: they go ahead of the
// line, by at most the rule's MaxReserved. Those who take tokens at once go ahead only if Others
// says so.
type Line struct {
	// Limit is what is shared. Its rule must have a MaxReserved, which should be at least the largest
	// count: a job whose count is not covered by MaxReserved waits until there are tokens, and
	// others may take them. It must not have shards: the line takes from one row.
	Limit ratelimit.Limit

	// OverAll has River's priorities, 1 to 4, count over all tenants: a job of priority 1 goes ahead
	// of all jobs of priority 2. Tenants with jobs of the same priority share fairly. Default:
	// priorities count among the jobs of one tenant only.
	OverAll bool

	// Patience bounds how long a job can be passed over by jobs of higher priority. Of a tenant's
	// jobs, only those go ahead of it that were due at most Patience later, for each priority by
	// which they are higher. With OverAll, a job that has waited for Patience counts as one priority
	// higher for those of other tenants. Default: an hour.
	Patience time.Duration

	// Others is the weight of all those who take from the limit without waiting in line, of HTTP
	// handlers say: together they count as one tenant. While they have had no more than its share,
	// the line leaves them Leave tokens. Once they have had more, the line takes what comes until it
	// has had as much, and they are denied. Default: 0, so that they get tokens only while no job
	// waits in line. It needs a TokenBucket.
	Others float64

	// Leave is how many tokens are left for Others. What flows in within 2 s must fit into the
	// capacity besides. Default: half of the capacity.
	Leave float64
}

const (
	// grantAhead is how far ahead of its tokens the work of a line is granted. workAhead is how much
	// of what is due may wait for a worker, in tokens that come in that time.
	grantAhead      = time.Second
	workAhead       = 500 * time.Millisecond
	defaultPatience = time.Hour
)

// line is a checked Line.
type line struct {
	Line
	rate     float64 // tokens a second
	capacity float64
	reserved float64 // MaxReserved
	windowed bool
}

// linesOf checks lines, and finds them by the names of their limits.
func linesOf(all []Line) (map[string]*line, error) {
	lines := map[string]*line{}
	for _, l := range all {
		checked, err := l.checked()
		if err != nil {
			return nil, fmt.Errorf("scheduler: Config.Lines: limit %q: %w", l.Limit.Name(), err)
		}
		if lines[l.Limit.Name()] != nil {
			return nil, fmt.Errorf("scheduler: Config.Lines: limit %q: two lines of one limit", l.Limit.Name())
		}
		lines[l.Limit.Name()] = checked
	}
	return lines, nil
}

func (l Line) checked() (*line, error) {
	c := &line{Line: l}
	var reserved *float64
	var period time.Duration
	switch rule := l.Limit.Rule().(type) {
	case ratelimit.TokenBucket:
		c.rate, c.capacity, period, reserved = rule.Rate, *rule.Capacity, rule.Period, rule.MaxReserved
	case ratelimit.FixedWindow:
		c.rate, c.capacity, period, reserved = rule.Rate, *rule.Capacity, rule.Period, rule.MaxReserved
		c.windowed = true
	default:
		return nil, fmt.Errorf("it is the zero Limit: want one made by ratelimit.Define")
	}
	c.rate /= period.Seconds()
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.Others > 0 && c.Leave == 0 {
		c.Leave = c.capacity / 2
	}
	switch {
	case strings.HasSuffix(l.Limit.Name(), " (shadow)"):
		return nil, fmt.Errorf("it is a Shadow, which denies nobody: nobody would wait")
	case l.Limit.Shards() > 1:
		return nil, fmt.Errorf("it has %d shards: a fair line takes from one row, so define it without Shards",
			l.Limit.Shards())
	case reserved == nil:
		return nil, fmt.Errorf("its rule has no MaxReserved: reservations could keep the line waiting for ever")
	case c.Patience < 0:
		return nil, fmt.Errorf("a Patience of %v: want 0 for an hour, or more", c.Patience)
	case !(c.Others >= 0) || math.IsInf(c.Others, 1):
		return nil, fmt.Errorf("a weight of %v for Others: want 0 or more", c.Others)
	case c.Others > 0 && c.windowed:
		return nil, fmt.Errorf("a weight for Others needs a TokenBucket: the tokens of a window come all at once")
	case !(c.Leave >= 0) || c.Leave > 0 && c.Others == 0:
		return nil, fmt.Errorf("a Leave of %v: want one above 0 together with Others, or none", c.Leave)
	case c.Others > 0 && c.Leave+2*grantAhead.Seconds()*c.rate > c.capacity:
		return nil, fmt.Errorf("a Leave of %v, and %v come within 2 s: more than the capacity of %v",
			c.Leave, 2*grantAhead.Seconds()*c.rate, c.capacity)
	}
	c.reserved = *reserved
	return c, nil
}

// level is the priority of a job for other tenants, given for how long it has been due.
func (l *line) level(priority int, waited time.Duration) int {
	if !l.OverAll {
		return 0
	}
	return max(1, priority-int(waited/l.Patience))
}

// place is where a job stands among those of its tenant, as an instant.
func (l *line) place(priority int, due time.Time) time.Time {
	return due.Add(time.Duration(priority-1) * l.Patience)
}
