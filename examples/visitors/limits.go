package main

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

const (
	sessionLife   = time.Hour
	challengeLife = 2 * time.Minute
	mostRise      = 4 // bits: sixteen times the work, when all want sessions
)

// limits bound what a visitor may do, and how many visitors an address may be.
type limits struct {
	perAddress ratelimit.Limit // all that comes from an address, which many may share: generous
	perSession ratelimit.Limit
	overall    ratelimit.Limit // what this site can serve

	free   ratelimit.Limit // sessions of an address for nothing
	earned ratelimit.Limit // sessions of an address for solved challenges
	once   ratelimit.Limit // challenges: each makes one session
	demand ratelimit.Limit // earned sessions of all: never denies, but makes challenges harder
}

// define allows a session so many requests a minute, and an address so many sessions an hour for
// nothing. As a session is over after an hour, twice as many are alive at a time at most: those of
// a full bucket, and what has flowed in since.
func define(requests, sessions float64) limits {
	return limits{
		perAddress: ratelimit.MustDefine("visitorAddress",
			ratelimit.TokenBucket{Rate: 50 * requests, Period: time.Minute}),
		perSession: ratelimit.MustDefine("visitorSession",
			ratelimit.TokenBucket{Rate: requests, Period: time.Minute}),
		overall: ratelimit.MustDefine("visitors",
			ratelimit.TokenBucket{Rate: 100_000, Period: time.Minute}, ratelimit.Shards(8)),

		free: ratelimit.MustDefine("visitorFree",
			ratelimit.TokenBucket{Rate: sessions, Period: sessionLife}),
		earned: ratelimit.MustDefine("visitorEarned",
			ratelimit.TokenBucket{Rate: 20 * sessions, Period: sessionLife}),
		demand: ratelimit.MustDefine("visitorDemand",
			ratelimit.TokenBucket{Rate: 10_000, Period: sessionLife}, ratelimit.Shadow()),

		// A bucket of one token that is full again long after the challenge is over. A window could
		// begin at any moment, and bring the next token while it is still good.
		once: ratelimit.MustDefine("visitorChallenge",
			ratelimit.TokenBucket{Rate: 1, Period: time.Hour}),
	}
}
