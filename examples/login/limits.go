package main

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// limits bound attempts to sign in. A right password gives its attempt back, so it is failures that are counted.
type limits struct {
	perAccount ratelimit.Limit // however many addresses guess
	perAddress ratelimit.Limit // however many accounts it guesses
}

// Production's numbers, and those of the demo, which has to end while you watch.
func define(failures float64, lockout time.Duration) limits {
	return limits{
		perAccount: ratelimit.MustDefine("signInByAccount", ratelimit.TokenBucket{Rate: failures, Period: lockout}),
		perAddress: ratelimit.MustDefine("signInByAddress", ratelimit.TokenBucket{Rate: 4 * failures, Period: lockout}),
	}
}
