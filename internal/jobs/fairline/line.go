// Package fairline grants the turns of fair lines, in which the jobs of tenants wait that share a
// limit. It reads and writes weir_line, weir_line_tenant and weir_turn, gives jobs of river_job their
// times, and lists who is next; the arithmetic is internal/turn's. It does not know how a job is
// inserted, nor what becomes of it once it has its turn. A Granter may be used concurrently.
package fairline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Line is a limit that tenants share: package scheduler has the same, and documents it.
type Line struct {
	Limit    ratelimit.Limit
	OverAll  bool
	Patience time.Duration
	Others   float64
	Leave    float64
}

// Tenant is one of those who share it: package scheduler has the same.
type Tenant struct {
	Key    string
	Weight float64
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

// Lines are those of a Scheduler, by the names of their limits.
type Lines map[string]*line

// Check checks lines.
func Check(all []Line) (Lines, error) {
	lines := Lines{}
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
		c.rate, c.capacity = rule.Rate, *rule.Capacity
		period, reserved = rule.Period, rule.MaxReserved
	case ratelimit.FixedWindow:
		c.rate, c.capacity, c.windowed = rule.Rate, *rule.Capacity, true
		period, reserved = rule.Period, rule.MaxReserved
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

// Seat checks what a job is to take at its turn.
func (all Lines) Seat(tenant Tenant, requests []ratelimit.Request) (*ticket.Seat, error) {
	if tenant.Weight == 0 {
		tenant.Weight = 1
	}
	switch k := tenant.Key; {
	case k == "" || len(k) > ratelimit.MaxKeyBytes || !utf8.ValidString(k) ||
		strings.ContainsRune(k, 0):
		return nil, fmt.Errorf("scheduler: a Tenant with the Key %.64q: want 1 to 1024 bytes of UTF-8 without NUL", k)
	case !(tenant.Weight >= 1.0/(1<<20) && tenant.Weight <= 1<<20):
		return nil, fmt.Errorf("scheduler: a Tenant with a Weight of %v: want 2^-20 to 2^20, or 0 for 1", tenant.Weight)
	}
	seat := &ticket.Seat{Tenant: tenant.Key, Weight: tenant.Weight, Waits: true}
	var asks []ratelimit.Request
	for _, r := range requests {
		name := r.Limit().Name()
		if r.Reserves() {
			return nil, fmt.Errorf("scheduler: a queued job asks for %v: want it without OrReserve and Within, as it is taken when the job's turn comes", r)
		}
		asked := r
		if l := all[name]; l != nil {
			plain := l.Limit.Global()
			if r.Key() != "" {
				plain = l.Limit.For(r.Key())
			}
			switch plain = plain.Count(r.N()); {
			case seat.Limit != "":
				return nil, fmt.Errorf("scheduler: a queued job asks for %q and for %q: want one limit of Config.Lines", seat.Limit, name)
			case r.String() != plain.String():
				return nil, fmt.Errorf("scheduler: a queued job asks for %v: want no option but its count", r)
			case !(r.N() > 0):
				return nil, fmt.Errorf("scheduler: a queued job asks for %v: want a count above 0", r)
			}
			seat.Limit, seat.Key, seat.Cost = name, r.Key(), r.N()
			asked = plain.OrReserve()
		}
		asks = append(asks, asked)
		b, err := json.Marshal(asked)
		if err != nil {
			return nil, err
		}
		seat.Requests = append(seat.Requests, b)
	}
	if seat.Limit == "" {
		return nil, errors.New("scheduler: a queued job asks for no limit of Config.Lines: use InsertTx, or put the limit there")
	}
	if _, _, err := ratelimit.Foretell(time.Now(), fullState, asks...); err != nil {
		return nil, err
	}
	return seat, nil
}

func fullState(string, string) ratelimit.State { return ratelimit.State{} }
