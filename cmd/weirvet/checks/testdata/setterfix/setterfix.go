package setterfix

import "github.com/weir-go/weir/ratelimit"

func dropped(limit ratelimit.Limit) ratelimit.Request {
	request := limit.For("a")
	request.Count(5).OrReserve() // want `the result of OrReserve is dropped`
	limit.For("a").Count(5)      // want `the result of Count is dropped`
	return request
}
