package ratelimit

import (
	"context"
	"errors"
	"testing"
	"time"
)

// nobody counts the trips that are sent to it.
type nobody struct{ trips int }

func (n *nobody) send(context.Context, []*statement) error {
	n.trips++
	return nil
}

// Where each trip is a transaction of its own, takes of several limits would be committed before it
// is known whether all are granted: such a call must begin a transaction.
func TestSeveralLimitsAreNotTakenInATripOfItsOwn(t *testing.T) {
	t.Parallel()
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	rule := TokenBucket{Rate: 1, Period: time.Second}
	calls, err := resolveAll([]Request{MustDefine("of one trip", rule).Global(), MustDefine("of one trip, too", rule).Global()})
	if err != nil {
		t.Fatal(err)
	}
	to := &nobody{}
	if _, err := l.rateLimit(t.Context(), executor{to: to, single: true}, calls); !errors.Is(err, errUndecided) {
		t.Errorf("%v, want that it is undecided", err)
	}
	if to.trips != 0 {
		t.Errorf("%d trips were sent", to.trips)
	}
}
