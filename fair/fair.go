package fair

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Limit is a limit that tenants share. It is safe for concurrent use. Define it once, in a package
// variable.
type Limit struct {
	total, used ratelimit.Limit
	window      time.Duration

	mu    sync.Mutex
	share float64             // tokens that flow in a window, as last told
	most  float64             // the capacity, likewise
	of    map[string]*float64 // what tenants have used in the window of their last call
}

// Config configures a [Limit]. The zero Config uses the defaults.
type Config struct {
	// Window is the time over which the use of tenants is compared, from one multiple of it to the
	// next. In the next window all tenants start equal, however much they have used in this one.
	// Default: a minute.
	Window time.Duration

	// Most is a number of tokens that no tenant can ever use in a window. A tenant's use is counted
	// down from it. A call for less than a 2^40th of it is refused. Default: a billion.
	Most float64

	// Options are the limit's options, such as [ratelimit.Shards].
	Options []ratelimit.Option
}

// Tenant is one of the tenants that share a limit.
type Tenant struct {
	Key string // as in [ratelimit.Limit.For]

	// Weight is the size of its share compared with others: with 2 it gets twice as much if all
	// want more than there is. Default: 1.
	Weight float64
}

// Limits decides: an [*ratelimit.Autocommit], a [*ratelimit.Coalesced], a [*ratelimit.FailOpen], or
// for a transaction the result of [ratelimit.Limiter.In].
type Limits interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
}

// Define makes a limit from a name and a rule, as [ratelimit.Define] does. A second limit, whose
// name ends in " (used)", counts what its tenants have used.
func Define(name string, rule ratelimit.Rule, cfg Config) (*Limit, error) {
	total, err := ratelimit.Define(name, rule, cfg.Options...)
	if err != nil {
		return nil, err
	}
	cfg.Window, cfg.Most = cmp.Or(cfg.Window, time.Minute), cmp.Or(cfg.Most, 1e9)
	used, err := ratelimit.Define(name+" (used)",
		ratelimit.FixedWindow{Rate: cfg.Most, Period: cfg.Window, Start: time.Unix(0, 0)})
	if err != nil {
		return nil, fmt.Errorf(
			"fair: the count of what tenants have used, of Config.Window and Config.Most: %w", err,
		)
	}
	return &Limit{total: total, used: used, window: cfg.Window, of: make(map[string]*float64)}, nil
}

// MustDefine is like [Define] but panics on an error. It is for package variables.
func MustDefine(name string, rule ratelimit.Rule, cfg Config) *Limit {
	l, err := Define(name, rule, cfg)
	if err != nil {
		panic(err)
	}
	return l
}

// Total is the limit that is shared. Calls that take from it directly ignore fairness: use it for
// critical traffic, for example.
func (l *Limit) Total() ratelimit.Limit { return l.total }

// Used counts what each tenant has used in the current window: Outcome.Capacity minus Value of its
// key.
func (l *Limit) Used() ratelimit.Limit { return l.used }

// RateLimit takes n tokens of the limit for a tenant, and what the other requests ask for, from all
// of them or from none. Otherwise it is [ratelimit.Limiter.RateLimit], with its errors. A denial
// may be for fairness. Then RetryAt is when the tenant would be granted if nobody else came. If a
// new window begins before that, it may be granted sooner. The other requests must not ask for the
// same limit.
func (l *Limit) RateLimit(
	ctx context.Context, by Limits, tenant Tenant, n float64, others ...ratelimit.Request,
) (ratelimit.Result, error) {
	tenant.Weight = cmp.Or(tenant.Weight, 1)
	if !(tenant.Weight > 0) || math.IsInf(tenant.Weight, 1) {
		return ratelimit.Result{}, &ratelimit.InvalidError{Limit: l.total.Name(),
			Field: "Tenant.Weight", Value: tenant.Weight, Want: "a number above 0"}
	}
	for again := false; ; again = true {
		leave := l.leave(tenant, n)
		res, err := by.RateLimit(ctx, append([]ratelimit.Request{
			l.total.Global().Count(n).Leave(leave),
			l.used.For(tenant.Key).Count(n),
		}, others...)...)
		if err != nil {
			return ratelimit.Result{}, err
		}
		l.learn(tenant.Key, &res)
		// What is known of a tenant is of its last call. If it has used less by now, a window has
		// begun since. That is not told by a comparison with the windows of others: a clock that
		// was ahead for a moment has left some in the future. If it has used more, in another
		// process, RetryAt is too early.
		if res.OK || again || l.leave(tenant, n) == leave {
			return res, nil
		}
	}
}

// headroom is how much of the capacity those have to leave who have used all that flows in a
// window: not all of it, or the bucket would have to overflow for one who is alone.
const headroom = 0.8

// leave is what a tenant has to leave after a take of n.
func (l *Limit) leave(t Tenant, n float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := 0.0
	if of := l.of[t.Key]; of != nil {
		used = *of
	}
	if !(used > 0 && l.share > 0 && n < l.most) {
		return 0
	}
	return headroom * (l.most - n) * min(1, used/(l.share*t.Weight))
}

// mostTenants bounds the memory.
const mostTenants = 10_000

// learn notes what a Result tells of the limit and the tenant.
func (l *Limit) learn(key string, res *ratelimit.Result) {
	if len(res.Outcomes) < 2 {
		return // let through undecided
	}
	total, used := &res.Outcomes[0], &res.Outcomes[1]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most, l.share = total.Capacity, total.Rate*float64(l.window)/float64(total.Period)
	of := l.of[key]
	if of == nil {
		if len(l.of) >= mostTenants {
			clear(l.of)
		}
		of = new(float64)
		l.of[strings.Clone(key)] = of // the key may be a small part of something large
	}
	*of = used.Capacity - used.Value
}
