package scheduler

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Line is a limit that tenants share fairly. Jobs that [Jobs.QueueTx] inserts for it wait in line,
// and when tokens come, the tenant that has had the least goes next. Each key of the limit is a
// line of its own. Put the Line into [Config.Lines] of each program that queues jobs for the limit
// or works them.
//
// [Jobs.InsertTx] may reserve tokens of the same limit. Such jobs keep their RunAt: they go ahead
// of the line, by at most the rule's MaxReserved. Callers that take tokens at once, without waiting
// in line, go ahead only if Others allows it.
type Line struct {
	// Limit is what the tenants share. Its rule must have a MaxReserved, which should be at least
	// the largest count. A job with a larger count waits until the tokens exist, and other callers
	// may take them first. If the limit has shards, each grant takes from all of them alike.
	Limit ratelimit.Limit

	// OverAll compares River's priorities, 1 to 4, across tenants: a job of priority 1 goes ahead
	// of all jobs of priority 2. Tenants with jobs of the same priority share fairly. Default:
	// priorities order only the jobs of one tenant.
	OverAll bool

	// Patience bounds how long jobs of higher priority can pass over a job. Within a tenant, a job
	// goes ahead of jobs one priority lower that were due up to Patience earlier, of jobs two
	// priorities lower that were due up to twice Patience earlier, and so on. With OverAll, a job
	// that has waited for Patience counts as one priority higher in the comparison with other
	// tenants. Default: an hour.
	Patience time.Duration

	// Others is the weight of all callers that take from the limit without waiting in line, such as
	// HTTP handlers. Together they count as one tenant. While they have had no more than their
	// share, the line leaves them Leave tokens. Once they have had more, the line takes all tokens
	// that come until it has caught up, and the others are denied. Default: 0, which gives them
	// tokens only while no job waits in line. Others needs a TokenBucket.
	Others float64

	// Leave is how many tokens are left for Others. The capacity must be at least Leave plus what
	// flows in within 2 s. Default: half of the capacity.
	Leave float64
}

const (
	// grantAhead is how far ahead of its tokens the work of a line is granted. workAhead is how
	// much of what is due may wait for a worker, in tokens that come in that time.
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
	shards   float64
}

// linesOf checks lines, and finds them by the names of their limits.
func linesOf(all []Line) (map[string]*line, error) {
	lines := map[string]*line{}
	for _, l := range all {
		name := l.Limit.Name()
		checked, err := l.checked()
		if err == nil && lines[name] != nil {
			err = errors.New("two lines of one limit")
		}
		if err != nil {
			return nil, fmt.Errorf("scheduler: Config.Lines: limit %q: %w", name, err)
		}
		lines[name] = checked
	}
	return lines, nil
}

func (l Line) checked() (*line, error) {
	c := &line{Line: l}
	var reserved *float64
	var period time.Duration
	switch rule := l.Limit.Rule().(type) {
	case ratelimit.TokenBucket:
		c.rate, c.capacity, period, reserved = rule.Rate, *rule.Capacity, rule.Period,
			rule.MaxReserved
	case ratelimit.FixedWindow:
		c.rate, c.capacity, period, reserved = rule.Rate, *rule.Capacity, rule.Period,
			rule.MaxReserved
		c.windowed = true
	default:
		return nil, fmt.Errorf("it is the zero Limit: want one made by ratelimit.Define")
	}
	c.rate /= period.Seconds()
	c.shards = float64(max(1, l.Limit.Shards()))
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.Others > 0 && c.Leave == 0 {
		c.Leave = c.capacity / 2
	}
	switch {
	case strings.HasSuffix(l.Limit.Name(), " (shadow)"):
		return nil, fmt.Errorf("it is a Shadow, which denies nobody: nobody would wait")
	case reserved == nil:
		return nil, fmt.Errorf(
			"its rule has no MaxReserved: reservations could keep the line waiting for ever",
		)
	case c.Patience < 0:
		return nil, fmt.Errorf("a Patience of %v: want 0 for an hour, or more", c.Patience)
	case !(c.Others >= 0) || math.IsInf(c.Others, 1):
		return nil, fmt.Errorf("a weight of %v for Others: want 0 or more", c.Others)
	case c.Others > 0 && c.windowed:
		return nil, fmt.Errorf(
			"a weight for Others needs a TokenBucket: the tokens of a window come all at once",
		)
	case !(c.Leave >= 0) || c.Leave > 0 && c.Others == 0:
		return nil, fmt.Errorf("a Leave of %v: want one above 0 together with Others, or none",
			c.Leave)
	case c.Others > 0 && c.Leave+2*grantAhead.Seconds()*c.rate > c.capacity:
		return nil,
			fmt.Errorf("a Leave of %v, and %v come within 2 s: more than the capacity of %v",
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
