package integration

import (
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A block as large as the capacity is fetched in parts of a take, whose sum may be rounded up: that is
// still no more than the capacity.
func TestALeaseAsksForNoMoreThanTheCapacity(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	limit := ratelimit.MustDefine("seven", ratelimit.TokenBucket{Rate: 7, Period: rig.Never})
	s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{Block: 7})
	leaseOK(t, s, 0.2, true)
	if err := l.Autocommit(pool).ResetRateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	leaseOK(t, s, 0.2, true)
}

// Who has tokens made available sooner, by a reset or the end of a pause, waits for a second at most
// until leases know it.
func TestALeaseLearnsOfAResetWithinASecond(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	v := l.Autocommit(pool)
	limit := ratelimit.MustDefine("day", ratelimit.FixedWindow{Rate: 2, Period: 24 * time.Hour, Start: clock.Now()})
	for name, c := range map[string]struct {
		deny, allow func(r ratelimit.Request) error
	}{
		"Reset": {
			func(r ratelimit.Request) error { return v.Consume(t.Context(), r.Count(2)) },
			func(r ratelimit.Request) error { return v.ResetRateLimit(t.Context(), r) },
		},
		"Resume": {
			func(r ratelimit.Request) error { return v.Pause(t.Context(), time.Hour, r) },
			func(r ratelimit.Request) error { return v.Resume(t.Context(), r) },
		},
	} {
		r := limit.For(name)
		s := lease(t, l, pool, r, ratelimit.LeaseConfig{})
		if err := c.deny(r); err != nil {
			t.Fatal(err)
		}
		leaseOK(t, s, 1, false)
		if err := c.allow(r); err != nil {
			t.Fatal(err)
		}
		clock.Add(time.Second)
		leaseOK(t, s, 1, true)
	}
}
