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
		return &InvalidError{Field: "duration of the pause", Value: d,
			Want: "one above 0 and at most 366 days"}
	}
	return nil
}

// Pause closes the limits and keys of the requests for d from now on, by the database's clock, as
// an API asks for with a 429 and a Retry-After. The counts of the requests do not matter, nor their
// rules, except the windows.
//
// It holds for every call that is decided after it has committed. A [Lease] hands out what it
// holds, and learns of the pause within a second. Work that has started goes on.
//
// For a paused limit time stands still. Nothing flows in and nothing is granted before the pause is
// over; RetryAt is after it. With [Request.OrReserve] calls are still granted for later, within
// MaxReserved, for when the pause is over, also if there are tokens. Work that was reserved before
// is delayed by the length of the pause, or with a [FixedWindow] by as many windows as begin in it:
// [Outcome] has the Delay.
//
// A pause that already ends later stays. Pauses do not add up: the latest end counts.
// [Limiter.GiveBack] and [Limiter.ResetRateLimit] work as usual, and end no pause. If the
// transaction rolls back, there was no pause.
//
// A d of 0 or less, or of more than 366 days, is refused with an error that matches [ErrInvalid];
// microseconds are rounded up. Other errors are as those of [Limiter.RateLimit].
func (l *Limiter) Pause(
	ctx context.Context, tx pgx.Tx, d time.Duration, requests ...Request,
) error {
	return l.in(tx).Pause(ctx, d, requests...)
}

// Resume ends the pauses of the requests' limits and keys now. If there is none it does nothing.
// Balances refill from where they were when the pause began. Waiting work moves up by what was left
// of the pause. Shards that wait for the lines of which they were merged go on waiting: see
// [Limiter.Reshard].
func (l *Limiter) Resume(ctx context.Context, tx pgx.Tx, requests ...Request) error {
	return l.in(tx).Resume(ctx, requests...)
}
