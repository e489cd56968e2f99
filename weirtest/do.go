package weirtest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/weir-go/weir/internal/algebra"
	"github.com/weir-go/weir/ratelimit"
)

// Do is [ratelimit.Autocommit.Do]. Calls has its Wait, and then a Settle, with what was used as its
// Requests, if fn has called used.
func (l *Limiter) Do(
	ctx context.Context, fn func(ctx context.Context, used func(...ratelimit.Request)) error,
	requests ...ratelimit.Request,
) (err error) {
	if fn == nil {
		return &ratelimit.InvalidError{Field: "fn", Value: nil, Want: "a function"}
	}
	res, err := l.Wait(ctx, requests...)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	ended := false
	used := map[account][]ratelimit.Request{}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		taken := slices.ContainsFunc(res.Outcomes, func(o ratelimit.Outcome) bool { return o.OK })
		if ended = true; len(used) > 0 && taken { // shadows may have taken nothing
			err = errors.Join(err, l.settle(res, used))
		}
	}()
	return fn(ctx, func(requests ...ratelimit.Request) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		for _, r := range requests {
			delete(used, of(r))
		}
		for _, r := range requests {
			used[of(r)] = append(used[of(r)], r)
		}
	})
}

// settle replaces what a call has taken with what was used. Only a mistake in that is an error: if
// the Limiter is to fail, what was taken stays taken.
func (l *Limiter) settle(res ratelimit.Result, used map[account][]ratelimit.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	call := Call{Verb: "Settle", Result: res, Err: l.failed}
	for _, requests := range used {
		call.Requests = append(call.Requests, requests...)
	}
	t := l.taken[&res.Outcomes[0]]
	truth, bad := sums(t, used)
	if bad != nil {
		call.Err = bad
	}
	counts := t.counts()
	for i, o := range t.outcomes {
		a := account{o.Limit, o.Key}
		n, named := truth[a]
		delete(truth, a) // those of one row were taken together
		row, ok := l.rows[a]
		if !named || !ok || !o.OK || call.Err != nil {
			continue
		}
		now := l.now().UnixMicro()
		if n <= counts[a] {
			row = ruleOf(o).Give(row, t.receipt(i, counts[a]), n, true, now)
		} else {
			row = ruleOf(o).Charge(row, n-counts[a], now)
		}
		l.put(a, row)
	}
	l.calls = append(l.calls, call)
	return bad
}

// sums are the tokens used of each balance, if they are those of a call.
func sums(t taken, used map[account][]ratelimit.Request) (map[account]float64, error) {
	shadows := map[account]bool{}
	for _, o := range t.outcomes {
		shadows[account{o.Limit, o.Key}] = o.Shadow
	}
	truth := map[account]float64{}
	for a, requests := range used {
		shadow, ok := shadows[a]
		if !ok {
			return nil, &ratelimit.InvalidError{Limit: a.limit, Field: "key", Value: a.key,
				Want: "a limit and a key that were taken from"}
		}
		if shadow {
			continue
		}
		for _, r := range requests {
			if !(r.N() >= 0 && truth[a]+r.N() <= algebra.Full) {
				return nil, &ratelimit.InvalidError{Limit: a.limit, Field: "count", Value: r.N(),
					Want: "0 to 2^53 tokens"}
			}
			truth[a] += r.N()
		}
	}
	return truth, nil
}
