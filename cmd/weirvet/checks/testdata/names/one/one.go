package one // want package:`defines "messages \(shadow\)", "messages", "slots", "uploads"`

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

const messages = "messages"

var (
	Messages = ratelimit.MustDefine(messages, ratelimit.TokenBucket{Rate: 1, Period: time.Second})
	tried    = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 2, Period: time.Second}, ratelimit.Shadow())
	uploads  = ratelimit.MustDefine("uploads", ratelimit.TokenBucket{Rate: 1, Period: time.Second}, ratelimit.Shards(2))
	renders  = slots.MustDefine("slots", 1)
)
