package weirtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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
	var used []ratelimit.Request
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		r := res.Reservation()
		if len(used) == 0 || len(r.Takes) == 0 { // shadows may have taken nothing
			return
		}
		// Only a mistake in what was used is an error: if the Limiter is to fail, what was taken
		// stays taken.
		_, failed := l.Settle(context.WithoutCancel(ctx), r, used...)
		if errors.Is(failed, ratelimit.ErrInvalid) {
			err = errors.Join(
				err, fmt.Errorf("ratelimit: Do could not settle what was used: %w", failed),
			)
		}
	}()
	return fn(ctx, func(requests ...ratelimit.Request) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		used = slices.DeleteFunc(used, func(old ratelimit.Request) bool {
			return slices.ContainsFunc(requests, func(r ratelimit.Request) bool {
				return of(r) == of(old)
			})
		})
		used = append(used, requests...)
	})
}
