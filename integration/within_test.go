package integration

import (
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// anyAhead draws how far ahead of its tokens a request may be granted, and tells whether it is Within some time.
func anyAhead(t *rapid.T, period time.Duration) (with func(ratelimit.Request) ratelimit.Request, bounded bool) {
	within := rapid.SampledFrom([]time.Duration{0, 1, time.Microsecond, time.Millisecond, period / 7, period / 2, period, 5 * period / 2, 20 * period}).Draw(t, "within")
	how := rapid.SampledFrom([]string{"now", "now", "now", "now", "reserved", "reserved", "within", "on credit", "reserved on credit", "within on credit"}).Draw(t, "ahead")
	return func(r ratelimit.Request) ratelimit.Request {
		switch how {
		case "reserved":
			return r.OrReserve()
		case "within":
			return r.Within(within)
		case "on credit":
			return r.OnCredit()
		case "reserved on credit":
			return r.OnCredit().OrReserve()
		case "within on credit":
			return r.OnCredit().Within(within)
		}
		return r
	}, how == "within" || how == "within on credit" || how == "on credit"
}
