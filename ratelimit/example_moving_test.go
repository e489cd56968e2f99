package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What stands in docs/moving.md after the move. What stood before is in bench/moving.

var chats = ratelimit.MustDefine("chats",
	ratelimit.TokenBucket{Rate: 10, Period: time.Minute, Capacity: ratelimit.Tokens(20)})

// allow is what was Limiter.Allow of redis_rate.
func allow(ctx context.Context, limits *ratelimit.Coalesced, user string) error {
	res, err := limits.RateLimit(ctx, chats.For(user))
	if err != nil {
		return err
	}
	return res.Err() // nil, or a *DeniedError
}

var calls = ratelimit.MustDefine("calls",
	ratelimit.TokenBucket{Rate: 50, Period: time.Second, Capacity: ratelimit.Tokens(5)})

// turn is what was Limiter.Wait of x/time/rate.
func turn(ctx context.Context, auto *ratelimit.Autocommit) error {
	_, err := auto.Wait(ctx, calls.Global())
	return err
}

// later is what was Limiter.Reserve of x/time/rate.
func later(ctx context.Context, auto *ratelimit.Autocommit) (delay time.Duration, cancel func() error, err error) {
	res, err := auto.RateLimit(ctx, calls.Global().OrReserve())
	if err != nil {
		return 0, nil, err
	}
	if !res.RunAt.IsZero() {
		delay = res.RunAt.Sub(res.At)
	}
	return delay, func() error { return auto.GiveBack(ctx, res) }, res.Err()
}

// A limiter of another kind is moved from name by name.
func Example_moving() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Coalesce(pool)
	defer limits.Close()

	var granted atomic.Int32
	var callers sync.WaitGroup
	for range 30 {
		callers.Go(func() {
			if allow(ctx, limits, "alice") == nil {
				granted.Add(1)
			}
		})
	}
	callers.Wait()
	fmt.Println(granted.Load(), "at once")
	fmt.Println("a turn:", turn(ctx, limits.Autocommit))
	delay, cancel, err := later(ctx, limits.Autocommit)
	fmt.Println(delay, err)
	fmt.Println("undone:", cancel())
	// Output:
	// 20 at once
	// a turn: <nil>
	// 0s <nil>
	// undone: <nil>
}
