package upstream_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weir-go/weir/upstream"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const year = 366 * 24 * time.Hour
	for name, c := range map[string]struct {
		header http.Header
		want   time.Duration // -1: it does not say
	}{
		"Nothing":  {http.Header{}, -1},
		"Seconds":  {http.Header{"Retry-After": {"30"}}, 30 * time.Second},
		"Spaces":   {http.Header{"Retry-After": {" 30 "}}, 30 * time.Second},
		"Fraction": {http.Header{"Retry-After": {"0.0000015"}}, 2 * time.Microsecond},
		"Zero":     {http.Header{"Retry-After": {"0"}}, 0},
		"Negative": {http.Header{"Retry-After": {"-5"}}, 0},
		"NaN":      {http.Header{"Retry-After": {"NaN"}}, -1},
		"Infinite": {http.Header{"Retry-After": {"Inf"}}, year},
		"Huge":     {http.Header{"Retry-After": {"99999999999999999999"}}, year},
		"Date": {http.Header{"Date": {"Sun, 06 Nov 1994 08:49:37 GMT"},
			"Retry-After": {"Sun, 06 Nov 1994 08:50:07 GMT"}}, 30 * time.Second},
		"DatePast": {http.Header{"Date": {"Sun, 06 Nov 1994 08:49:37 GMT"}, "Retry-After": {"Sun, 06 Nov 1994 08:49:07 GMT"}}, 0},
		"DateFar": {http.Header{"Date": {"Sun, 06 Nov 1994 08:49:37 GMT"},
			"Retry-After": {"Sun, 06 Nov 9994 08:49:07 GMT"}}, year},
		"Nonsense":          {http.Header{"Retry-After": {"soon"}}, -1},
		"Milliseconds":      {http.Header{"Retry-After-Ms": {"1500"}, "Retry-After": {"2"}}, 1500 * time.Millisecond},
		"RateLimit":         {http.Header{"Ratelimit": {`"default";r=0;t=45`}}, 45 * time.Second},
		"RateLimitSeveral":  {http.Header{"Ratelimit": {`"burst";r=0;t=5, "daily";r=0;t=600, "monthly";r=12;t=9000`}}, 10 * time.Minute},
		"RateLimitLines":    {http.Header{"Ratelimit": {`"burst";r=0;t=5`, `"daily";r=0;t=600`}}, 10 * time.Minute},
		"RateLimitLeft":     {http.Header{"Ratelimit": {`"default";r=7;t=45`}}, -1},
		"RateLimitNoTime":   {http.Header{"Ratelimit": {`"default";r=0`}}, -1},
		"RateLimitNonsense": {http.Header{"Ratelimit": {`limit=10, remaining=0`}}, -1},
		"RateLimitInner":    {http.Header{"Ratelimit": {`("a" "b");r=0;t=4`}}, -1},
		"Overflow":          {http.Header{"Retry-After": {"1e400"}}, year},
		"Empty":             {http.Header{"Retry-After": {""}}, -1},
		"ZeroMilliseconds":  {http.Header{"Retry-After-Ms": {"0"}, "Retry-After": {"2"}}, 0},
		"BadMilliseconds":   {http.Header{"Retry-After-Ms": {"soon"}, "Retry-After": {"2"}}, 2 * time.Second},
		"RateLimitNow":      {http.Header{"Ratelimit": {`"default";r=0;t=0`}}, 0},
		"ZeroAndRateLimit":  {http.Header{"Ratelimit": {`"default";r=0;t=45`}, "Retry-After": {"0"}}, 45 * time.Second},
		"Both":              {http.Header{"Ratelimit": {`"default";r=0;t=45`}, "Retry-After": {"50"}}, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if d, ok := upstream.RetryAfter(c.header); d != max(0, c.want) || ok != (c.want >= 0) {
				t.Errorf("got %v and %v, want %v", d, ok, c.want)
			}
		})
	}
}

// Without a Date the program's clock has to do.
func TestRetryAfterADateWithoutADate(t *testing.T) {
	t.Parallel()
	d, ok := upstream.RetryAfter(http.Header{"Retry-After": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}})
	if !ok || d < 59*time.Minute || d > time.Hour {
		t.Errorf("got %v and %v", d, ok)
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("30", "", "", "")
	f.Add("Sun, 06 Nov 1994 08:50:07 GMT", "1", "Sun, 06 Nov 1994 08:49:37 GMT", `"a";r=0;t=45, "b";r=1`)
	f.Add("1e400", "-0", "x", `("a");r=0;t=99999999999999999`)
	f.Fuzz(func(t *testing.T, after, ms, date, limit string) {
		d, ok := upstream.RetryAfter(http.Header{"Retry-After": {after}, "Retry-After-Ms": {ms},
			"Date": {date}, "Ratelimit": {limit}})
		if !ok && d != 0 || d < 0 || d > 366*24*time.Hour {
			t.Fatalf("got %v and %v", d, ok)
		}
	})
}

func ExampleRetryAfter() {
	header := http.Header{}
	header.Set("RateLimit", `"per minute";r=0;t=12`)
	d, ok := upstream.RetryAfter(header)
	fmt.Println(d, ok)
	// Output: 12s true
}
