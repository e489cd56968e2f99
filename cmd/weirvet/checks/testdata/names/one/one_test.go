package one

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

var again = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 3, Period: time.Second})
