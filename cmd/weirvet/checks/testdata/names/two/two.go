package two // want package:`defines "messages \(shadow\)", "messages", "messages", "mine", "mine", "mine", "plan", "plan", "shared", "shared", "slots", "uploads"`

import (
	"time"

	"example.com/names/one"
	"github.com/weir-go/weir/fair"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

var bucket = ratelimit.TokenBucket{Rate: 1, Period: time.Second}

var (
	mine     = ratelimit.MustDefine("mine", bucket)
	messages = ratelimit.MustDefine("messages", bucket) // want `the limit "messages" is defined twice, and both share their rows: the other is in example.com/names/one, one.go:13`
	limits   = slots.MustDefine("mine", 2)
	shared   = fair.MustDefine("shared", bucket, fair.Config{})
	plain    = ratelimit.MustDefine("shared", bucket) // want `the limit "shared" is defined twice, and both share their rows: the other is in two.go:18`
)

func init() {
	_, err := ratelimit.Define("mine", bucket) // want `the limit "mine" is defined twice, and both share their rows: the other is in two.go:15`
	_ = err
	_ = one.Messages
}

// Two branches define one limit.
func plan(free bool) ratelimit.Limit {
	if free {
		return ratelimit.MustDefine("plan", bucket)
	}
	return ratelimit.MustDefine("plan", ratelimit.TokenBucket{Rate: 10, Period: time.Second})
}

// Whether one of the options is Shadow cannot be seen.
func options(name string, options ...ratelimit.Option) {
	ratelimit.MustDefine("mine", bucket, options...)
	ratelimit.MustDefine(name, bucket)
}
