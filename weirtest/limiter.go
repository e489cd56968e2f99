package weirtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/ratelimit"
)

// Limiter decides in memory as [ratelimit.Autocommit] does in Postgres, with the same arithmetic
// and the same Results: limits run out, refill according to its Clock, and refuse bad requests. It
// has all methods of [ratelimit.Verbs], so it can be used where code takes that interface, or one
// with some of its methods. [Limiter.Deny] and [Limiter.Fail] make it deny and fail on demand, and
// [Limiter.Calls] returns the calls that were made.
//
// A limit has one balance, however many shards it has. Do not pass the Results of a Limiter, or
// their Reservations, to a limiter with a database.
//
// The zero Limiter has all limits full. It is safe for concurrent use.
type Limiter struct {
	Clock *Clock // Default: the time of the process.

	mu      sync.Mutex
	rows    map[account]algebra.Row
	taken   map[*ratelimit.Outcome]taken // that can be given back, by the first of their Outcomes
	settled map[settlement]bool
	denied  map[string]time.Time // until when, by the names of limits
	failed  error
	calls   []Call
}

var _ ratelimit.Verbs = (*Limiter)(nil)

// Set sets the balance of the request's limit and key; a negative value is a debt. The count of the
// request does not matter. A value above the capacity is set to the capacity.
func (l *Limiter) Set(request ratelimit.Request, value float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := l.rows[of(request)]
	if !row.Exists {
		row.By = algebra.Rule{Capacity: algebra.Full, Period: 1}
		if res, _, err := l.tell(countless([]ratelimit.Request{request})); err == nil {
			row.By = *ruleOf(res.Outcomes[0])
		}
		row.PausedUntil = algebra.Open
	}
	row.Exists, row.Value, row.TS = true, value, l.now().UnixMicro()
	l.put(of(request), row)
}

// RateLimit is [ratelimit.Autocommit.RateLimit].
func (l *Limiter) RateLimit(
	ctx context.Context, requests ...ratelimit.Request,
) (ratelimit.Result, error) {
	return l.decide(ctx, "RateLimit", true, requests)
}

// Consume is [ratelimit.Autocommit.Consume]. Calls has it as a RateLimit, unless it is refused.
func (l *Limiter) Consume(ctx context.Context, requests ...ratelimit.Request) error {
	if slices.ContainsFunc(requests, ratelimit.Request.Reserves) {
		return new(ratelimit.FailOpen).Consume(ctx, requests...) // refuses it before it needs a Limiter
	}
	res, err := l.RateLimit(ctx, requests...)
	if err != nil {
		return err
	}
	return res.Err()
}

// CheckRateLimit is [ratelimit.Autocommit.CheckRateLimit].
func (l *Limiter) CheckRateLimit(
	ctx context.Context, requests ...ratelimit.Request,
) (ratelimit.Result, error) {
	return l.decide(ctx, "CheckRateLimit", false, requests)
}

// Wait is [ratelimit.Autocommit.Wait]. With a Clock it returns when the Clock reaches the time at
// which the work may run, and it does not compare that with the deadline of ctx in advance. A pause
// that begins meanwhile does not delay it.
func (l *Limiter) Wait(
	ctx context.Context, requests ...ratelimit.Request,
) (ratelimit.Result, error) {
	patient := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		patient[i] = r.OrReserve()
	}
	late := l.late(ctx, patient)
	res, err := l.decide(ctx, "Wait", true, patient)
	if errors.Is(err, ratelimit.ErrInvalid) && late {
		err = fmt.Errorf("ratelimit: wait: the tokens do not come in time: %w",
			context.DeadlineExceeded)
	}
	if err == nil {
		err = res.Err()
	}
	if err != nil || res.RunAt.IsZero() {
		return res, err
	}
	if err := l.sleep(ctx, res.RunAt); err != nil {
		_ = l.giveBack(res)
		return ratelimit.Result{}, fmt.Errorf("ratelimit: wait for limit %q: %w", res.Limit, err)
	}
	return res, nil
}

// late tells whether requests would have to wait for longer than ctx lasts, or might have to, as
// nobody says when a window begins. It has them ask for that time then.
func (l *Limiter) late(ctx context.Context, requests []ratelimit.Request) bool {
	end, ends := ctx.Deadline()
	if !ends || l.Clock != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := max(0, time.Until(end))
	res, _, err := l.foretell(ctx, requests)
	if err != nil {
		return false
	}
	bounded := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		bounded[i] = r.Within(left)
	}
	_, _, refused := l.tell(bounded)
	if refused == nil && (!res.OK || res.RunAt.Sub(res.At) <= left) {
		return false
	}
	copy(requests, bounded)
	return true
}

func (l *Limiter) sleep(ctx context.Context, until time.Time) error {
	if l.Clock != nil {
		return l.Clock.wait(ctx, until)
	}
	select {
	case <-time.After(time.Until(until)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ResetRateLimit is [ratelimit.Autocommit.ResetRateLimit].
func (l *Limiter) ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error {
	return l.change(ctx, "ResetRateLimit", requests, (*algebra.Rule).Reset)
}

// Pause is [ratelimit.Autocommit.Pause].
func (l *Limiter) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	if d <= 0 || d > 366*24*time.Hour {
		err := &ratelimit.InvalidError{Field: "duration of the pause", Value: d,
			Want: "one above 0 and at most 366 days"}
		l.note(Call{Verb: "Pause", Requests: requests, Err: err})
		return err
	}
	us := (d + time.Microsecond - 1).Microseconds()
	return l.change(ctx, "Pause", requests,
		func(a *algebra.Rule, row algebra.Row, now int64) algebra.Row {
			return a.Pause(row, us, now)
		})
}

// Resume is [ratelimit.Autocommit.Resume].
func (l *Limiter) Resume(ctx context.Context, requests ...ratelimit.Request) error {
	return l.change(ctx, "Resume", requests, (*algebra.Rule).Resume)
}

// GiveBack is [ratelimit.Autocommit.GiveBack].
func (l *Limiter) GiveBack(ctx context.Context, res ratelimit.Result) error {
	var err error
	if res.OK && res.Decided() { // otherwise there is nothing to ask the database for
		err = l.ready(ctx)
	}
	if err == nil {
		err = l.giveBack(res)
	}
	l.note(Call{Verb: "GiveBack", Result: res, Err: err})
	return err
}

// Value is [ratelimit.Autocommit.Value].
func (l *Limiter) Value(
	ctx context.Context, request ratelimit.Request,
) (s ratelimit.State, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, states, err := l.foretell(ctx, countless([]ratelimit.Request{request}))
	if err == nil {
		s = states[0]
	}
	l.calls = append(l.calls, Call{Verb: "Value", Requests: []ratelimit.Request{request}, Err: err})
	return s, err
}

func (l *Limiter) decide(
	ctx context.Context, verb string, take bool, requests []ratelimit.Request,
) (ratelimit.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	res, states, err := l.foretell(ctx, requests)
	onDemand := err == nil && l.onDemand(&res)
	if onDemand {
		var still []ratelimit.State
		_, still, err = l.foretell(ctx, countless(requests)) // as nothing is taken
		for i := range still {
			if o := &res.Outcomes[i]; !res.OK || !o.OK {
				o.Value = still[i].Value
			}
		}
	}
	if err == nil && take && res.OK {
		left := make([]algebra.Balance, len(requests))
		for i, r := range requests {
			if o := res.Outcomes[i]; o.OK { // or it is a shadow's
				ts := l.now().UnixMicro()
				if was := l.rows[of(r)]; was.Exists {
					ts = max(ts, was.TS)
				}
				row := rowOf(states[i], ts, ruleOf(o))
				left[i] = row.Balance
				l.put(of(r), row)
			}
		}
		if l.taken == nil {
			l.taken = make(map[*ratelimit.Outcome]taken)
		}
		l.taken[&res.Outcomes[0]] = taken{slices.Clone(requests), slices.Clone(res.Outcomes), left}
	}
	if err == nil && take && !res.OK && !onDemand {
		l.lower(requests, res.Outcomes)
	}
	if !take && res.OK {
		res = untaken(res)
	}
	l.calls = append(
		l.calls, Call{Verb: verb, Requests: slices.Clone(requests), Result: res, Err: err},
	)
	return res, err
}

// lower does what takes do that are given back because another limit denies the call: a balance of
// more than the rule's capacity is lowered to that.
func (l *Limiter) lower(requests []ratelimit.Request, outcomes []ratelimit.Outcome) {
	for i, r := range requests {
		if row, o := l.rows[of(r)], outcomes[i]; row.Exists && o.OK && !o.Shadow {
			a := ruleOf(o)
			l.put(of(r), algebra.Row{Balance: a.At(row.Balance, l.now().UnixMicro()), By: *a})
		}
	}
}

// untaken returns the Result of a check, which has taken nothing: it has no Reservation, as that of
// a real check.
func untaken(res ratelimit.Result) ratelimit.Result {
	seen := ratelimit.Result{OK: res.OK, RunAt: res.RunAt, RetryAt: res.RetryAt, At: res.At,
		Limit: res.Limit, Key: res.Key, Outcomes: make([]ratelimit.Outcome, len(res.Outcomes))}
	for i, o := range res.Outcomes {
		seen.Outcomes[i] = ratelimit.Outcome{Limit: o.Limit, Key: o.Key, OK: o.OK, Shadow: o.Shadow,
			Value: o.Value, Capacity: o.Capacity, Rate: o.Rate, Period: o.Period,
			WindowEnds: o.WindowEnds, RunAt: o.RunAt, RetryAt: o.RetryAt, PacedAt: o.PacedAt,
			Delay: o.Delay}
	}
	return seen
}

func (l *Limiter) foretell(
	ctx context.Context, requests []ratelimit.Request,
) (ratelimit.Result, []ratelimit.State, error) {
	res, states, err := l.tell(requests)
	if err != nil {
		return ratelimit.Result{}, nil, err
	}
	if err := l.fails(ctx); err != nil {
		return ratelimit.Result{}, nil, err
	}
	return res, states, nil
}

func (l *Limiter) tell(requests []ratelimit.Request) (ratelimit.Result, []ratelimit.State, error) {
	state := func(limit, key string) ratelimit.State { return stateOf(l.rows[account{limit, key}]) }
	return ratelimit.Foretell(l.now(), state, requests...)
}

// change changes the rows of requests.
func (l *Limiter) change(
	ctx context.Context, verb string, requests []ratelimit.Request,
	to func(*algebra.Rule, algebra.Row, int64) algebra.Row,
) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	bare := countless(requests)
	_, _, err := l.foretell(ctx, bare[:min(1, len(bare))])
	rules := make([]*algebra.Rule, len(bare))
	for i := 0; i < len(bare) && err == nil; i++ {
		var res ratelimit.Result
		// alone, as others may deny what is asked of shadows, and options do not matter
		if res, _, err = l.tell(bare[i : i+1]); err == nil {
			rules[i] = ruleOf(res.Outcomes[0])
		}
	}
	for i := 0; i < len(bare) && err == nil; i++ {
		l.put(of(bare[i]), to(rules[i], l.rows[of(bare[i])], l.now().UnixMicro()))
	}
	l.calls = append(l.calls, Call{Verb: verb, Requests: slices.Clone(requests), Err: err})
	return err
}

func (l *Limiter) giveBack(res ratelimit.Result) error {
	if err := res.Err(); errors.Is(err, ratelimit.ErrNoDecision) {
		return err
	}
	if !res.OK || !res.Decided() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	taken, ok := l.taken[&res.Outcomes[0]]
	if !ok {
		return &ratelimit.InvalidError{Field: "Result", Value: "another",
			Want: "one that RateLimit of this Limiter returned"}
	}
	counts := taken.counts()
	for i, o := range taken.outcomes {
		a := account{o.Limit, o.Key}
		n := counts[a]
		delete(counts, a) // those of one row were taken together
		if row, ok := l.rows[a]; ok && o.OK {
			// The line moves up if the call did not wait for those before it.
			moves := o.RunAt.IsZero() || o.RunAt.UnixMicro() <= taken.left[i].PausedUntil
			l.put(a, ruleOf(o).Give(row, taken.receipt(i, n), 0, moves, l.now().UnixMicro()))
		}
	}
	return nil
}

func (l *Limiter) put(a account, row algebra.Row) {
	if l.rows == nil {
		l.rows = make(map[account]algebra.Row)
	}
	l.rows[a] = row
}

func (l *Limiter) ready(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fails(ctx)
}

func (l *Limiter) fails(ctx context.Context) error {
	if l.failed != nil {
		return l.failed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	return nil
}

func (l *Limiter) now() time.Time {
	if l.Clock != nil {
		return l.Clock.Now()
	}
	return time.Now().UTC().Truncate(time.Microsecond)
}
