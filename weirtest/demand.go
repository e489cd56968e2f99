package weirtest

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Deny denies all keys of the limit for d from now on. Their RetryAt is the end of that time, by
// the Clock, or later if they would be denied anyway. A d of 0 ends it. It takes and refills
// nothing.
func (l *Limiter) Deny(limit ratelimit.Limit, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.denied == nil {
		l.denied = make(map[string]time.Time)
	}
	l.denied[limit.Name()] = l.now().Add(d)
}

// Fail makes every call fail with err, as if the database was away; nil ends that. Bad requests are
// still refused.
func (l *Limiter) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = err
}

// onDemand denies what Deny has asked for, and tells whether that would be granted otherwise.
func (l *Limiter) onDemand(res *ratelimit.Result) (denied bool) {
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		until := l.denied[o.Limit]
		if !until.After(res.At) {
			continue
		}
		denied = denied || o.OK
		if o.OK = false; until.After(o.RetryAt) {
			o.RetryAt = until
		}
		if o.RunAt, o.PacedAt = (time.Time{}), (time.Time{}); o.Shadow {
			continue
		}
		if res.OK {
			res.OK, res.RunAt, res.Limit, res.Key = false, time.Time{}, "", ""
		}
		if o.RetryAt.After(res.RetryAt) {
			res.RetryAt, res.Limit, res.Key = o.RetryAt, o.Limit, o.Key
		}
	}
	for i := range res.Outcomes {
		if o := &res.Outcomes[i]; !res.OK {
			o.RunAt, o.PacedAt = time.Time{}, time.Time{}
		}
	}
	return denied
}

func countless(requests []ratelimit.Request) []ratelimit.Request {
	bare := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		bare[i] = r.Count(0).Leave(0)
	}
	return bare
}
