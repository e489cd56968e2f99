package ratelimit

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// mostPaused keeps a mistaken unit from closing a limit for good.
const mostPaused = 366 * 24 * time.Hour

func checkPause(d time.Duration) error {
	if d <= 0 || d > mostPaused {
		return &InvalidError{Field: "duration of the pause", Value: d, Want: "one above 0, and of 366 days at the most"}
	}
	return nil
}

// Pause closes the limits and keys of the requests for d from now on, by the database's clock: what an upstream demands with
// a 429 and a Retry-After. The counts of the requests do not matter, and of their rules only the windows.
//
// It holds for every call that is decided after it has committed. A [Lease] hands out what it holds, and learns of the pause
// within a second. Work that has started goes on.
//
// For a paused limit time stands still. Nothing flows in and nothing is granted before the pause is over; a denial's RetryAt
// says so. With [Request.OrReserve] calls are granted ahead as ever, within MaxReserved, for when the pause is over or later;
// so is then a call for which there are tokens. What was reserved before comes later by the length of the pause, under a
// [FixedWindow] by as many windows as begin in it: [Outcome] has the Delay by which to tell.
//
// A pause that is already longer stays. Several add up to no more than the last of their ends. [Limiter.GiveBack] and
// [Limiter.ResetRateLimit] do what they do, and end no pause. If the transaction rolls back there was none.
//
// A d of 0 or less, or of more than 366 days, is refused with an error that matches [ErrInvalid]; microseconds are rounded up.
// Other errors are as those of [Limiter.RateLimit].
func (l *Limiter) Pause(ctx context.Context, tx pgx.Tx, d time.Duration, requests ...Request) error {
	if err := checkPause(d); err != nil {
		return err
	}
	x, calls, err := l.prepare(tx, bare(requests))
	if err != nil {
		return err
	}
	return l.pause(ctx, x, d, calls)
}

// Resume ends the pauses of the requests' limits and keys, now; where there is none it does nothing. Time goes on with the
// balances as the pauses found them. What waits in line comes earlier again by what was left of the pause.
func (l *Limiter) Resume(ctx context.Context, tx pgx.Tx, requests ...Request) error {
	x, calls, err := l.prepare(tx, bare(requests))
	if err != nil {
		return err
	}
	return l.resume(ctx, x, calls)
}
