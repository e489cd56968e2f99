// Package moving has what docs/moving.md moves from, so that it is compiled.
package moving

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"golang.org/x/time/rate"
)

// Allow asks redis_rate.
func Allow(ctx context.Context, limiter *redis_rate.Limiter, user string) error {
	res, err := limiter.Allow(ctx, "chats:"+user,
		redis_rate.Limit{Rate: 10, Period: time.Minute, Burst: 20})
	if err != nil {
		return err
	}
	if res.Allowed == 0 {
		return fmt.Errorf("come again in %v", res.RetryAfter)
	}
	return nil
}

var calls = rate.NewLimiter(50, 5)

// Turn waits by x/time/rate.
func Turn(ctx context.Context) error {
	return calls.Wait(ctx)
}

// Later reserves by x/time/rate.
func Later() (delay time.Duration, cancel func()) {
	r := calls.Reserve()
	return r.Delay(), r.Cancel
}
