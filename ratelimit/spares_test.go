package ratelimit

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// The memory of an outage is bounded: keys that come on top of it are not let through, until others
// are full again.
func TestTheMemoryOfAnOutageIsBounded(t *testing.T) {
	t.Parallel()
	limit := MustDefine("many", TokenBucket{Rate: 1, Period: time.Minute})
	var s spares
	now := time.Now()
	take := func(key string) error {
		_, err := s.take([]Request{limit.For(key)}, 1, now)
		return err
	}
	for i := range mostSpares {
		if err := take(fmt.Sprint(i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := take("new"); !errors.Is(err, errSpares) || len(s.of) != mostSpares {
		t.Errorf("one more than %d: %v", len(s.of), err)
	}
	if err := take("7"); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	now = now.Add(time.Minute)
	if err := take("new"); err != nil || len(s.of) != 1 {
		t.Errorf("one more when the others are full again: %v, of %d", err, len(s.of))
	}
}

// A call that one limit denies in an outage takes from no limit, and each Outcome shows the balance
// as it stays.
func TestADenialInAnOutageShowsWhatIsLeft(t *testing.T) {
	t.Parallel()
	ten := MustDefine("ten", TokenBucket{Rate: 10, Period: time.Minute})
	one := MustDefine("one", TokenBucket{Rate: 1, Period: time.Minute})
	var s spares
	now := time.Now()
	take := func(requests ...Request) Result {
		t.Helper()
		res, err := s.take(requests, 1, now)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	both := []Request{ten.For("k").Count(3), one.For("k")}
	if res := take(both...); !res.OK || res.Outcomes[0].Value != 7 || res.Outcomes[1].Value != 0 {
		t.Fatalf("the first call: %+v", res)
	}
	for range 2 {
		res := take(both...)
		if res.OK || !res.RunAt.IsZero() || res.Limit != "one" || !res.Outcomes[0].OK || res.Outcomes[1].OK {
			t.Fatalf("%+v, want it denied by one", res)
		}
		if of := res.Outcomes; of[0].Value != 7 || of[1].Value != 0 {
			t.Errorf("%v and %v are left, want 7 and 0", of[0].Value, of[1].Value)
		}
	}
	if res := take(ten.For("k").Count(7)); !res.OK || res.Outcomes[0].Value != 0 {
		t.Errorf("what is left: %+v", res)
	}
}
