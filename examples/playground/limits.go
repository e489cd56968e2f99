package main

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// kind is a limit to play with, and what it shows.
type kind struct {
	Name  string `json:"name"`
	Words string `json:"words"`
	Most  int    `json:"most"`  // calls at once
	Ahead bool   `json:"ahead"` // what is not there yet is reserved, with a job
	Key   bool   `json:"key"`   // it has keys

	limit ratelimit.Limit
	also  []ratelimit.Limit // are asked in the same call
}

// The limits are short of breath, so that what happens can be watched.
var (
	search = ratelimit.MustDefine("search",
		ratelimit.TokenBucket{Rate: 20, Period: 10 * time.Second})
	strict = ratelimit.MustDefine("search",
		ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second}, ratelimit.Shadow())
	report = ratelimit.MustDefine("reports",
		ratelimit.FixedWindow{Rate: 12, Period: 20 * time.Second})
	feed = ratelimit.MustDefine("publicFeed",
		ratelimit.TokenBucket{Rate: 400, Period: 10 * time.Second}, ratelimit.Shards(4))
	model = ratelimit.MustDefine("modelTokens",
		ratelimit.TokenBucket{Rate: 60, Period: time.Minute, Capacity: ratelimit.Tokens(10),
			MaxReserved: ratelimit.Tokens(90)})

	kinds = []kind{
		{"search",
			"A token bucket: two a second, twenty at once. Beside it a stricter one in the shadow, which only watches.",
			100, false, true, search, []ratelimit.Limit{
				strict,
			}},
		{"reports", "A fixed window: twelve in each twenty seconds, all of them at its start.", 100,
			false, true, report, nil},
		{"publicFeed", "Forty a second that all callers share, spread over four rows.", 1000, false,
			false, feed, nil},
		{"modelTokens",
			"One a second. What is not there yet is reserved ahead, and a River job starts when it comes.",
			100, true, true, model, nil},
	}
)

func kindOf(name string) (kind, bool) {
	for _, k := range kinds {
		if k.Name == name {
			return k, true
		}
	}
	return kind{}, false
}

// requests are those of one call.
func (k kind) requests(key string) (all []ratelimit.Request) {
	for _, l := range append([]ratelimit.Limit{k.limit}, k.also...) {
		r := l.Global()
		if k.Key {
			r = l.For(key)
		}
		if k.Ahead {
			r = r.OrReserve()
		}
		all = append(all, r)
	}
	return all
}
