package main

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// budget is what the API allows in any interval of a minute's length. The demo's minute is shorter,
// so that it ends while you watch.
type budget struct {
	api      string // with which the names of its limits begin
	minute   time.Duration
	tokens   int
	requests int
}

// The sizes of requests, in tokens.
const smallest, largest = 20, 480

// limits are the program's own, on the API's budget. They would be variables of a package if the
// numbers were known then.
type limits struct {
	chatTokens, chatRequests ratelimit.Limit
}

// slack is the time that passes between a call's tokens and the API's count of it: until it starts,
// until it is admitted, and until it is settled.
const slack = 400 * time.Millisecond

// mostReserved is more than the demo ever reserves: nobody is denied in it. A limit with a fair
// line must have a bound, as reservations go ahead of the line.
const mostReserved = 1_000_000

// define leaves the API's budget whole. A token bucket grants up to its capacity at once and its
// rate besides, so in the worst minute capacity + rate: together they must be no more than the API
// allows. The capacity must hold the largest request, and the rate gets the rest. But in the API's
// minute there come those that are up to a slack late, and what they were to use and did not goes
// to others in it: so what flows in is for a minute and the slack.
//
// Shards are for many more callers than here. Each holds the largest request, so the capacity is
// that of all of them.
func define(b budget, shards int) (limits, error) {
	bucket := func(name string, total, capacity float64,
		options ...ratelimit.Option) (ratelimit.Limit, error) {
		return ratelimit.Define(name, ratelimit.TokenBucket{
			Rate:     total - capacity,
			Period:   b.minute + slack,
			Capacity: ratelimit.Tokens(capacity),

			MaxReserved: ratelimit.Tokens(mostReserved),
		}, options...)
	}
	var l limits
	var err error
	if l.chatTokens, err = bucket(b.api+"chatTokens", float64(b.tokens), float64(largest*shards),
		ratelimit.Shards(shards)); err != nil {
		return l, err
	}
	// The fair line takes of it twice a second, for all jobs whose turn it is: those must fit into
	// it.
	l.chatRequests, err = bucket(b.api+"chatRequests", float64(b.requests), float64(b.requests)/10)
	return l, err
}

// tokensOf are the tokens of a reservation.
func (l limits) tokensOf(r ratelimit.Reservation) (n float64) {
	for _, t := range r.Takes {
		if t.Limit == l.chatTokens.Name() {
			n += t.Count
		}
	}
	return n
}
