package main

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// budget is what the API allows in any interval of a minute's length. The demo's minute is shorter, so that it ends while
// you watch.
type budget struct {
	minute   time.Duration
	tokens   int
	requests int
}

// The sizes of requests, in tokens.
const smallest, largest = 20, 480

// limits are the program's own, on the API's budget. They would be variables of a package if the numbers were known then.
type limits struct {
	chatTokens, chatRequests ratelimit.Limit
}

// define leaves the API's budget whole. A token bucket grants up to its capacity at once and its rate besides, so in the
// worst minute capacity + rate: together they must be no more than the API allows. The capacity must hold the largest
// request, and the rate gets the rest, with a twentieth to spare, since a call reaches the API a little after it starts.
func define(b budget) (limits, error) {
	bucket := func(name string, total, capacity float64) (ratelimit.Limit, error) {
		return ratelimit.Define(name, ratelimit.TokenBucket{
			Rate:     total*0.95 - capacity,
			Period:   b.minute,
			Capacity: ratelimit.Tokens(capacity),
		})
	}
	var l limits
	var err error
	if l.chatTokens, err = bucket("chatTokens", float64(b.tokens), largest); err != nil {
		return l, err
	}
	l.chatRequests, err = bucket("chatRequests", float64(b.requests), 5)
	return l, err
}
