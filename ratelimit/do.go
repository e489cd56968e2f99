package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/weir-go/weir/internal/grace"
)

// Do waits for its turn, calls fn, and settles what fn has used. Use it, for example, for a call to
// a model while a user waits for the answer. fn runs only if the requests were granted, once its
// turn has come, as after [Autocommit.Wait].
//
//	err := auto.Do(ctx, func(ctx context.Context, used func(...ratelimit.Request)) error {
//		answer, err := model.Answer(ctx, prompt)
//		if err == nil {
//			used(ChatTokens.For(org).CountInt(answer.TotalTokens))
//		}
//		return err
//	}, ChatTokens.For(org).Count(1200).Within(10*time.Second), ChatRequests.For(org))
//
// fn calls used to say how much of its limits and keys it has used so far, as for [Limiter.Settle].
// While an answer streams it may call used again and again: for each limit and key the last call
// counts. The function used is safe for concurrent use, and does nothing once fn has returned.
//
// Do settles however fn ends: also if it returns an error or panics, or if ctx has ended because
// the user has left. That takes up to 5 seconds. Limits for which fn has not called used keep what
// was reserved. So if fn has used nothing, it should call used with counts of 0. If the process
// dies, everything stays charged.
//
// Wait's error is returned if fn has not run: a [*DeniedError] if the turn would come too late.
// Requests with [Request.Within] bound the wait, and the deadline of ctx bounds both the wait and
// fn. Otherwise the error is that of fn. If used was called for what was not reserved, the error
// also matches [ErrInvalid]. If the settlement fails, Config.Logger gets a warning, what was
// reserved stays charged, and Do still returns fn's error.
func (a *Autocommit) Do(
	ctx context.Context, fn func(ctx context.Context, used func(...Request)) error,
	requests ...Request,
) error {
	return a.work(ctx, a.Wait, fn, requests)
}

// Do is [Autocommit.Do], decided together with other calls.
func (c *Coalesced) Do(
	ctx context.Context, fn func(ctx context.Context, used func(...Request)) error,
	requests ...Request,
) error {
	return c.work(ctx, c.Wait, fn, requests)
}

func (a *Autocommit) work(
	ctx context.Context, wait func(context.Context, ...Request) (Result, error),
	fn func(context.Context, func(...Request)) error, requests []Request,
) (err error) {
	if fn == nil {
		return &InvalidError{Field: "fn", Value: plain("nil"), Want: "a function"}
	}
	res, err := wait(ctx, requests...)
	if err != nil {
		return err
	}
	var u usage
	defer func() {
		used, reservation := u.close(), res.Reservation()
		if len(used) == 0 || len(reservation.Takes) == 0 { // shadows may have taken nothing
			return
		}
		ctx, cancel := grace.Now(ctx)
		defer cancel()
		_, failed := a.Settle(ctx, reservation, used...)
		switch {
		case failed == nil:
		case errors.Is(failed, ErrInvalid):
			err = errors.Join(
				err, fmt.Errorf("ratelimit: Do could not settle what was used: %w", failed),
			)
		default:
			a.l.hot.Logger.WarnContext(ctx,
				"ratelimit: not settled, so what was reserved stays charged", "limit", used[0].Limit().Name(),
				"error", failed)
		}
	}()
	return fn(ctx, u.report)
}

// usage is what fn has reported as used: for each limit and key the last report.
type usage struct {
	mu    sync.Mutex
	used  []Request
	ended bool
}

func (u *usage) report(used ...Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return
	}
	u.used = slices.DeleteFunc(u.used, func(old Request) bool {
		return slices.ContainsFunc(used, func(r Request) bool {
			return r.Limit().Name() == old.Limit().Name() && r.Key() == old.Key()
		})
	})
	u.used = append(u.used, used...)
}

func (u *usage) close() []Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	return u.used
}
