package ratelimit

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/algebra"
	"github.com/weir-go/weir/internal/where"
)

func deniedFor(d time.Duration) *Decision {
	return &Decision{RetryAt: time.UnixMicro(noon).Add(d)}
}

func TestDenialIsExpectedAgainUntilItsTokensCome(t *testing.T) {
	t.Parallel()
	var d denials
	calls := resolved(t, apples.For("x").Count(5), pears.For("x"))
	if d.expected(calls) {
		t.Error("expected before any denial")
	}
	d.note(&calls[0], deniedFor(time.Hour), noon)
	if !d.expected(calls) {
		t.Error("not expected after a denial of one of two")
	}
	if d.expected(calls[1:]) || d.expected(resolved(t, apples.For("y").Count(5))) {
		t.Error("expected of another row")
	}

	var past denials
	past.note(&calls[0], deniedFor(0), noon)
	if past.expected(calls) {
		t.Error("expected after its tokens have come")
	}
}

func TestOnlyEqualOrLargerDemandsAreExpectedToBeDenied(t *testing.T) {
	t.Parallel()
	var d denials
	denied := resolved(t, apples.For("x").Count(5))
	d.note(&denied[0], deniedFor(time.Hour), noon)
	for _, tc := range []struct {
		r    Request
		want bool
	}{
		{apples.For("x").Count(5), true},
		{apples.For("x").Count(6), true},
		{apples.For("x").Count(4), false},
		{apples.For("x").Count(6).OrReserve(), false},
	} {
		if got := d.expected(resolved(t, tc.r)); got != tc.want {
			t.Errorf("count %v, reserve %v: %v", tc.r.count, tc.r.reserve, got)
		}
	}
}

func TestGrantAndForgetEndTheExpectation(t *testing.T) {
	t.Parallel()
	var d denials
	calls := resolved(t, apples.For("x"), pears.For("x"))
	for i := range calls {
		d.note(&calls[i], deniedFor(time.Hour), noon)
	}
	d.note(&calls[0], &Decision{OK: true}, noon)
	if d.expected(calls[:1]) || !d.expected(calls[1:]) {
		t.Error("a grant ends the expectation for its row, and for no other")
	}
	d.forget(calls)
	if d.expected(calls) || len(d.rows) != 0 {
		t.Errorf("%d rows are left after forget", len(d.rows))
	}
}

// A pause denies whatever is asked for, and until its end only; but what is reserved.
func TestInAPauseEveryDemandIsExpectedToBeDenied(t *testing.T) {
	t.Parallel()
	var d denials
	denied := resolved(t, apples.For("x").Count(5))
	paused := func(until time.Duration) *Decision {
		return &Decision{RetryAt: time.UnixMicro(noon).Add(2 * time.Hour),
			State: State{PausedUntil: time.UnixMicro(noon).Add(until)}}
	}
	d.note(&denied[0], paused(time.Hour), noon)
	for _, tc := range []struct {
		r    Request
		want bool
	}{
		{apples.For("x").Count(5), true},
		{apples.For("x").Count(0), true},
		{apples.For("x").OrReserve(), false},
	} {
		if got := d.expected(resolved(t, tc.r)); got != tc.want {
			t.Errorf("count %v, reserve %v: %v", tc.r.count, tc.r.reserve, got)
		}
	}
	d.note(&denied[0], paused(0), noon)
	if d.expected(denied) {
		t.Error("expected when the pause is over")
	}
}

// A debt may be centuries deep; how long to remember is a matter of memory, and must not overflow.
func TestFarRetryAtDoesNotOverflow(t *testing.T) {
	t.Parallel()
	var d denials
	calls := resolved(t, apples.For("x"))
	d.note(&calls[0], &Decision{RetryAt: time.UnixMicro(algebra.EndOfTime)}, -algebra.EndOfTime)
	if !d.expected(calls) {
		t.Error("not expected")
	}
	if until := d.rows[calls[0].Row].until; until.After(time.Now().Add(25 * time.Hour)) {
		t.Errorf("remembered until %v", until)
	}
}

// Keys are chosen by clients: a flood of them must not fill the memory.
func TestDenialsAreOfBoundedNumber(t *testing.T) {
	t.Parallel()
	var d denials
	most := 0
	for i := range 3*mostDenials + 1 {
		c := call{Ask: algebra.Ask{Count: 1}, Row: where.Of("limit", fmt.Sprint(i), 0)}
		d.note(&c, deniedFor(time.Hour), noon)
		most = max(most, len(d.rows))
		if !d.expected([]call{c}) {
			t.Fatalf("denial %d was dropped at once", i)
		}
	}
	if most > mostDenials || len(d.rows) < mostDenials/2 {
		t.Errorf("up to %d, %d at last, of at most %d", most, len(d.rows), mostDenials)
	}
}

func TestExpiredDenialsAreDroppedFirst(t *testing.T) {
	t.Parallel()
	var d denials
	live := call{Ask: algebra.Ask{Count: 1}, Row: where.Of("limit", "live", 0)}
	d.note(&live, deniedFor(time.Hour), noon)
	for i := range mostDenials {
		d.note(&call{Ask: algebra.Ask{Count: 1}, Row: where.Of("limit", fmt.Sprint(i), 0)}, deniedFor(0), noon)
	}
	if !d.expected([]call{live}) || len(d.rows) > mostDenials/2 {
		t.Errorf("the live one of %d was dropped", len(d.rows))
	}
}

func TestDenialsAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var d denials
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				c := call{Ask: algebra.Ask{Count: 1}, Row: where.Of("limit", fmt.Sprint((i+j)%20), 0)}
				d.note(&c, &Decision{OK: j%3 == 0, RetryAt: time.UnixMicro(noon + 1e9)}, noon)
				d.expected([]call{c})
				if j%7 == 0 {
					d.forget([]call{c})
				}
			}
		})
	}
	wg.Wait()
}

// A denial that was read before a change, and is noted after it, is expected again but answers
// nobody.
func TestADenialFromBeforeAChangeAnswersNobody(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*denials, []call){
		"nothing":       func(*denials, []call) {},
		"a reset":       func(d *denials, c []call) { d.forget(c) },
		"that of a key": func(d *denials, c []call) { d.forgetKey(c[0].Key) },
	} {
		var d denials
		calls := resolved(t, apples.For("x").Count(5))
		d.watch(calls)
		change(&d, calls)
		d.note(&calls[0], deniedFor(time.Hour), noon)
		clock := func() time.Time { return time.UnixMicro(noon) }
		if _, ok := d.answer(calls, 1, clock); ok != (what == "nothing") || !d.expected(calls) {
			t.Errorf("%s: answered %v, expected %v", what, ok, d.expected(calls))
		}
		again := resolved(t, apples.For("x").Count(5)) // not watched: what it was told may be of an older snapshot
		d.note(&again[0], deniedFor(time.Hour), noon)
		if _, ok := d.answer(calls, 1, clock); ok {
			t.Errorf("%s: answered with what was not watched", what)
		}
	}
}
