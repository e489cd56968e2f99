package slots_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

var three = slots.MustDefine("three", 3)

// A clock that is set back, as after a failover to a server whose clock is behind, does not let a
// token come again.
func TestATokenGrowsThoughTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	one := slots.MustDefine("one", 1)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var last int64
	for range 5 {
		s := open(t, pool, slots.Config{Clock: func() time.Time { return now }})
		h := try(t, s, one.For("k"))
		if got := h.Slots()[0].Token; got <= last || got > 1<<53 {
			t.Errorf("token %d after %d", got, last)
		} else {
			last = got
		}
		release(t, h)
		now = now.Add(-30 * time.Minute)
	}
}

func TestNoMoreThanNAreGrantedAndWhatIsReleasedIsGrantedAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	here, there := open(t, pool, slots.Config{}), open(t, pool, slots.Config{})
	var holds []*slots.Hold
	numbers := map[int]bool{}
	for i := range 3 {
		h := try(t, []*slots.Slots{here, there}[i%2], three.For("k"))
		s := h.Slots()[0]
		if s.Limit != "three" || s.Key != "k" || s.Number < 0 || s.Number > 2 || numbers[s.Number] || h.Err() != nil {
			t.Fatalf("%+v, %v, after %v", s, h.Err(), numbers)
		}
		numbers[s.Number] = true
		holds = append(holds, h)
	}
	for _, s := range []*slots.Slots{here, there} {
		_, err := s.TryAcquire(t.Context(), three.For("k"))
		var full *slots.FullError
		if !errors.As(err, &full) || !errors.Is(err, slots.ErrFull) ||
			*full != (slots.FullError{Limit: "three", Key: "k", N: 3}) {
			t.Fatalf("%v, want a FullError", err)
		}
		if n, err := s.Held(t.Context(), three.For("k")); err != nil || n != 3 {
			t.Fatalf("%d held, %v", n, err)
		}
	}
	release(t, try(t, here, three.For("other")))
	release(t, try(t, here, three.Global()))

	was := holds[1].Slots()[0]
	release(t, holds[1])
	release(t, holds[1])
	if err := holds[1].Err(); !errors.Is(err, slots.ErrReleased) {
		t.Errorf("%v, want ErrReleased", err)
	}
	h := try(t, here, three.For("k"))
	if s := h.Slots()[0]; s.Number != was.Number || s.Token <= was.Token {
		t.Errorf("%+v after %+v, want the same number and a larger token", s, was)
	}
	for _, h := range []*slots.Hold{h, holds[0], holds[2]} {
		release(t, h)
	}
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestSeveralLimitsAreHeldAllOrNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	one := slots.MustDefine("one", 1)
	h := try(t, s, three.For("a"), one.Global())
	if all := h.Slots(); len(all) != 2 || all[0].Limit != "one" || all[1].Limit != "three" {
		t.Errorf("%+v, want both, sorted", all)
	}
	_, err := s.TryAcquire(t.Context(), three.For("a"), three.For("b"), one.Global())
	var full *slots.FullError
	if !errors.As(err, &full) || full.Limit != "one" {
		t.Fatal(err)
	}
	if n := rows(t, pool); n != 2 {
		t.Errorf("%d rows, want the 2 that are held", n)
	}
	release(t, h)
	h = try(t, s, one.Global(), three.For("a"), three.For("b"))
	if n := rows(t, pool); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	release(t, h)
}

// What was granted by a larger number counts, and nothing is granted before it has gone; with a
// larger one more is granted at once.
func TestTheNumberOfSlotsChangesWhileTheyAreHeld(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	var holds []*slots.Hold
	for range 5 {
		holds = append(holds, try(t, s, three.For("k").Of(5)))
	}
	full := func(n int) {
		t.Helper()
		if _, err := s.TryAcquire(t.Context(), three.For("k").Of(n)); !errors.Is(err, slots.ErrFull) {
			t.Fatalf("%v, want ErrFull", err)
		}
	}
	full(2)
	holds = append(holds, try(t, s, three.For("k").Of(6)))
	full(6)
	for i, h := range holds { // in any order, as their numbers are random
		if len(holds)-i >= 2 {
			full(2)
		} else {
			release(t, try(t, s, three.For("k").Of(2)))
		}
		release(t, h)
	}
}

// waitsForOne has a caller wait for the only slot of a key, and returns what that caller gets.
func waitsForOne(t *testing.T, s *slots.Slots) <-chan *slots.Hold {
	t.Helper()
	got := make(chan *slots.Hold)
	go func() {
		h, err := s.Acquire(t.Context(), three.For("k").Of(1))
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	until(t, "somebody waits", func() bool { return slots.Waiting(s, "three", "k") == 1 })
	return got
}

// A caller with a larger number is not behind those that wait with a smaller one.
func TestALargerNumberDoesNotWaitForASmallerOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	held := try(t, s, three.For("k").Of(1))
	got := waitsForOne(t, s)
	larger := try(t, s, three.For("k").Of(2))
	if _, err := s.TryAcquire(t.Context(), three.For("k").Of(1)); !errors.Is(err, slots.ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	release(t, larger)
	release(t, held)
	release(t, <-got)
}

func TestASlotIsPassedOnOnlyToWhoMayHaveIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	big := []*slots.Hold{try(t, s, three.For("k").Of(2)), try(t, s, three.For("k").Of(2))}
	got := waitsForOne(t, s)
	release(t, big[0])
	select {
	case <-got:
		t.Fatal("a second one was granted, of one")
	case <-time.After(300 * time.Millisecond): // longer than until the next look
	}
	release(t, big[1])
	release(t, <-got)
}

// Work that waits for tokens goes by the newest rule of its limit's name.
func TestALimitOfSlotsDoesNotRedefineTheTokenLimitOfItsName(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 7, Period: time.Second, Capacity: ratelimit.Tokens(7)}
	b, err := json.Marshal(ratelimit.MustDefine("of tokens and of slots", rule).For("k"))
	if err != nil {
		t.Fatal(err)
	}
	slots.MustDefine("of tokens and of slots", 5)
	var read ratelimit.Request
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	if got := read.Limit().Rule(); !reflect.DeepEqual(got, rule) {
		t.Errorf("the limit of tokens has the rule %+v, want %+v", got, rule)
	}
}

func TestBadCallsAreRefusedWithWhatWouldBeRight(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	of := func(_ any, err error) error { return err }
	for want, err := range map[string]error{
		`name is ""`:                         of(slots.Define("", 1)),
		`n is 0: want a number of slots fro`: of(slots.Define("a", 0)),
		`n is 10001: want a number of slots`: of(slots.Define("a", slots.Max+1)),
		`n is -1`:                            of(s.TryAcquire(t.Context(), three.For("k").Of(-1))),
		`key is "": want`:                    of(s.Acquire(t.Context(), three.For(""))),
		`key is "a\x00"`:                     s.Do(t.Context(), nil, three.For("a\x00")),
		`key is "\xff"`:                      of(s.TryAcquire(t.Context(), three.For("\xff"))),
		`xxx...": want 1 to 1024 bytes`:      of(s.TryAcquire(t.Context(), three.For(strings.Repeat("x", 1025)))),
		`xxx...": want 1 to 255 bytes`:       of(slots.Define(strings.Repeat("x", 256), 1)),
		`not the zero Limit`:                 of(s.Held(t.Context(), slots.Limit{}.For("k"))),
		`requests is 0`:                      of(s.TryAcquire(t.Context())),
		`want each key once in a call`: of(
			s.TryAcquire(t.Context(), three.For("k"), three.For("l"), three.For("k")),
		),
		`pool is <nil>`:                      of(slots.New(nil, slots.Config{})),
		`TTL is 1ms: want a second to a day`: of(slots.New(pool, slots.Config{TTL: time.Millisecond})),
		`Schema is "\x00"`:                   of(slots.New(pool, slots.Config{Schema: "\x00"})),
	} {
		if !errors.Is(err, ratelimit.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("MustDefine did not panic")
		}
	}()
	slots.MustDefine("x", 0)
}
