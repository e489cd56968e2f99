// Package upstream keeps clients within the limits of the APIs that they call. [Transport] is an
// http.RoundTripper: each call waits for its turn, in order over all processes, and after a 429 no
// call is sent before the time that the API has asked for. [RetryAfter] reads that time from an
// answer.
//
//	client := &http.Client{Timeout: 10 * time.Second, Transport: &upstream.Transport{
//		Limiter:  limiter.Autocommit(pool),
//		Requests: func(*http.Request) []ratelimit.Request { return []ratelimit.Request{PartnerAPI.For(tenant)} },
//	}}
//
// Where you do not use a Transport, for example in a worker, use [RetryAfter]:
//
//	if resp.StatusCode == http.StatusTooManyRequests {
//		d, ok := upstream.RetryAfter(resp.Header)
//		if !ok {
//			d = time.Minute // it does not say
//		}
//		if d == 0 {
//			return errors.New(resp.Status) // it may be tried again at once: no pause
//		}
//		return &scheduler.PauseError{For: min(d, time.Hour), Requests: []ratelimit.Request{ChatTokens.For(org)}}
//	}
package upstream

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// most bounds what is read: it is as long as a pause may be.
const most = 366 * 24 * time.Hour

// RetryAfter returns how long an answer asks its client to wait, counted from when it was sent. It
// returns false if the answer does not say. With true the duration may be 0: the client may come
// back at once. It reads, and takes the longest of
//
//   - Retry-After, in seconds or as a date (RFC 9110, 10.2.3). A date is compared with the answer's
//     own Date, since the clocks of the API and of this program may differ;
//   - Retry-After-Ms, in milliseconds, as some APIs of language models send it, in place of
//     Retry-After;
//   - RateLimit, in the form of draft-ietf-httpapi-ratelimit-headers-10: of the policies with
//     nothing remaining, r=0, the longest time until they have more, t in seconds.
//
// Values that cannot be read are ignored. A number below 0 and a date in the past count as 0. More
// than 366 days counts as 366 days, which is more than most callers should believe. A [Transport]
// has a bound of its own, MaxPause; a caller that pauses by hand should have one too.
func RetryAfter(h http.Header) (time.Duration, bool) {
	after, said := retryAfter(h)
	reset, exhausted := rateLimit(h)
	return min(max(after, reset), most), said || exhausted
}

func retryAfter(h http.Header) (d time.Duration, said bool) {
	if ms, ok := number(h.Get("Retry-After-Ms")); ok {
		return duration(ms / 1e3), true
	}
	v := h.Get("Retry-After")
	if s, ok := number(v); ok { // RFC 9110 has whole seconds; some send fractions
		return duration(s), true
	}
	at, err := http.ParseTime(strings.TrimSpace(v))
	if err != nil {
		return 0, false
	}
	sent, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		sent = time.Now()
	}
	return max(0, at.Sub(sent)), true
}

// number reads a field that is a number. One that is too large for a float64 is infinite.
func number(field string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
	return n, (err == nil || errors.Is(err, strconv.ErrRange)) && !math.IsNaN(n)
}

// duration is never shorter than the seconds that were said, and never below 0.
func duration(seconds float64) time.Duration {
	if seconds <= 0 {
		return 0
	}
	if seconds >= most.Seconds() {
		return most
	}
	return time.Duration(math.Ceil(seconds*1e6)) * time.Microsecond
}

func rateLimit(h http.Header) (d time.Duration, exhausted bool) {
	list, err := httpsfv.UnmarshalList(h.Values("RateLimit"))
	if err != nil {
		return 0, false
	}
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
				d, exhausted = max(d, duration(float64(seconds))), true
			}
		}
	}
	return d, exhausted
}
