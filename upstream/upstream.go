// Package upstream reads what an API says about its limits: how long to stay away after a 429 or a 503. [Transport] does so for the
// client of an API: each call waits for its turn, in line over all processes, and no call is sent before the time is over that a 429
// has asked for.
//
//	client := &http.Client{Timeout: 10 * time.Second, Transport: &upstream.Transport{
//		Limiter:  limiter.Autocommit(pool),
//		Requests: func(*http.Request) []ratelimit.Request { return []ratelimit.Request{PartnerAPI.For(tenant)} },
//	}}
//
// By hand it is [RetryAfter], in a worker say:
//
//	if resp.StatusCode == http.StatusTooManyRequests {
//		d, ok := upstream.RetryAfter(resp.Header)
//		if !ok {
//			d = time.Minute
//		}
//		return &scheduler.PauseError{For: d, Requests: []ratelimit.Request{ChatTokens.For(org)}}
//	}
package upstream

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// most bounds what is believed.
const most = 366 * 24 * time.Hour

// RetryAfter tells how long an answer asks its client to stay away, from when it was sent; false if it does not say. It
// reads, and takes the longest of
//
//   - Retry-After, in seconds or as a date (RFC 9110, 10.2.3), which is held against the answer's own Date: the clock of the
//     API and that of the program need not agree;
//   - Retry-After-Ms, in milliseconds, as some APIs of language models send it, in place of Retry-After;
//   - RateLimit, in the form of draft-ietf-httpapi-ratelimit-headers-10: of the policies with nothing remaining, r=0, the
//     longest time until they have more, t in seconds.
//
// What cannot be read, or is not above 0, is passed over; more than 366 days is taken for that.
func RetryAfter(h http.Header) (time.Duration, bool) {
	d := max(retryAfter(h), rateLimit(h))
	return min(d, most), d > 0
}

func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil && ms > 0 {
		return duration(ms / 1e3)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(v, 64); err == nil { // RFC 9110 has whole seconds; some send fractions
		return duration(s)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	sent, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		sent = time.Now()
	}
	return at.Sub(sent)
}

// duration is never shorter than what was said.
func duration(seconds float64) time.Duration {
	if !(seconds > 0) {
		return 0
	}
	if seconds >= most.Seconds() {
		return most
	}
	return time.Duration(math.Ceil(seconds*1e6)) * time.Microsecond
}

func rateLimit(h http.Header) time.Duration {
	list, err := httpsfv.UnmarshalList(h.Values("RateLimit"))
	if err != nil {
		return 0
	}
	var d time.Duration
	for _, m := range list {
		item, ok := m.(httpsfv.Item)
		if !ok || item.Params == nil {
			continue
		}
		if r, ok := item.Params.Get("r"); !ok || r != int64(0) {
			continue
		}
		if t, ok := item.Params.Get("t"); ok {
			if seconds, ok := t.(int64); ok {
				d = max(d, duration(float64(seconds)))
			}
		}
	}
	return d
}
