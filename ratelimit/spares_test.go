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
