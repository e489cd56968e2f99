package rig

import (
	"context"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// owned runs fn in a transaction of its own. Its methods are the verbs, each in one.
type owned func(ctx context.Context, fn func(ctx context.Context, v Verbs) error) error

// RateLimit is that of ratelimit.Verbs, as are all others.
func (o owned) RateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	err = o(ctx, func(ctx context.Context, v Verbs) error {
		res, err = v.RateLimit(ctx, requests...)
		return err
	})
	return res, err
}

func (o owned) Consume(ctx context.Context, requests ...ratelimit.Request) error {
	return o(ctx, func(ctx context.Context, v Verbs) error { return v.Consume(ctx, requests...) })
}

func (o owned) CheckRateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	err = o(ctx, func(ctx context.Context, v Verbs) error {
		res, err = v.CheckRateLimit(ctx, requests...)
		return err
	})
	return res, err
}

func (o owned) ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error {
	return o(ctx, func(ctx context.Context, v Verbs) error { return v.ResetRateLimit(ctx, requests...) })
}

func (o owned) ResetKey(ctx context.Context, key string) error {
	return o(ctx, func(ctx context.Context, v Verbs) error { return v.ResetKey(ctx, key) })
}

func (o owned) GiveBack(ctx context.Context, res ratelimit.Result) error {
	return o(ctx, func(ctx context.Context, v Verbs) error { return v.GiveBack(ctx, res) })
}

func (o owned) Value(ctx context.Context, request ratelimit.Request) (s ratelimit.State, err error) {
	err = o(ctx, func(ctx context.Context, v Verbs) error {
		s, err = v.Value(ctx, request)
		return err
	})
	return s, err
}

func (o owned) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	return o(ctx, func(ctx context.Context, v Verbs) error { return v.Pause(ctx, d, requests...) })
}

func (o owned) Resume(ctx context.Context, requests ...ratelimit.Request) error {
	return o(ctx, func(ctx context.Context, v Verbs) error { return v.Resume(ctx, requests...) })
}

func (o owned) Settle(
	ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request,
) (settled bool, err error) {
	err = o(ctx, func(ctx context.Context, v Verbs) error {
		settled, err = v.Settle(ctx, r, used...)
		return err
	})
	return settled, err
}

func (o owned) Release(ctx context.Context, r ratelimit.Reservation) (released bool, err error) {
	err = o(ctx, func(ctx context.Context, v Verbs) error {
		released, err = v.Release(ctx, r)
		return err
	})
	return released, err
}
