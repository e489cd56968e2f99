package sibling // want package:`defines "uploads"`

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

var Uploads = ratelimit.MustDefine("uploads", ratelimit.FixedWindow{Rate: 1, Period: time.Second})
