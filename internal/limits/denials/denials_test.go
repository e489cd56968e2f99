package denials

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
)

const noon = 1_700_000_000_000_000

// call is a call for a row.
type call struct {
	where.Row
	algebra.Ask
	watched uint64
}

func of(name, key string, count float64) *call {
	return &call{Row: where.Of(name, key, 0), Ask: algebra.Ask{Count: count,
		Rule: algebra.Rule{Capacity: 10, Rate: 10, Period: 60e6, Debt: 1e6}}}
}

// reserve is a call that may be granted for later.
func reserve(key string, count float64) *call {
	c := of("apples", key, count)
	c.Reserve = true
	return c
}

func (c *call) note(d *Denials, v *algebra.Verdict) { d.Note(&c.Row, &c.Ask, v, c.watched) }

func (c *call) expected(d *Denials) bool { return d.Expected(&c.Row, &c.Ask) }

func deniedFor(d time.Duration) *algebra.Verdict {
	return &algebra.Verdict{At: noon, RetryAt: noon + d.Microseconds(),
		After: algebra.Balance{PausedUntil: algebra.Open}}
}

func TestDenialIsExpectedAgainUntilItsTokensCome(t *testing.T) {
	t.Parallel()
	var d Denials
	c, other := of("apples", "x", 5), of("pears", "x", 1)
	if c.expected(&d) {
		t.Error("expected before any denial")
	}
	c.note(&d, deniedFor(time.Hour))
	if !c.expected(&d) {
		t.Error("not expected after a denial")
	}
	if other.expected(&d) || of("apples", "y", 5).expected(&d) {
		t.Error("expected of another row")
	}

	var past Denials
	c.note(&past, deniedFor(0))
	if c.expected(&past) {
		t.Error("expected after its tokens have come")
	}
}

func TestOnlyEqualOrLargerDemandsAreExpectedToBeDenied(t *testing.T) {
	t.Parallel()
	var d Denials
	of("apples", "x", 5).note(&d, deniedFor(time.Hour))
	for _, tc := range []struct {
		c    *call
		want bool
	}{
		{of("apples", "x", 5), true},
		{of("apples", "x", 6), true},
		{of("apples", "x", 4), false},
		{reserve("x", 6), false},
	} {
		if got := tc.c.expected(&d); got != tc.want {
			t.Errorf("count %v, reserve %v: %v", tc.c.Count, tc.c.Reserve, got)
		}
	}
}

func TestGrantAndForgetEndTheExpectation(t *testing.T) {
	t.Parallel()
	var d Denials
	a, b := of("apples", "x", 1), of("pears", "x", 1)
	a.note(&d, deniedFor(time.Hour))
	b.note(&d, deniedFor(time.Hour))
	a.note(&d, &algebra.Verdict{OK: true})
	if a.expected(&d) || !b.expected(&d) {
		t.Error("a grant ends the expectation for its row, and for no other")
	}
	d.Forget(a.Row)
	d.Forget(b.Row)
	if a.expected(&d) || b.expected(&d) || len(d.rows) != 0 {
		t.Errorf("%d rows are left after forget", len(d.rows))
	}
}

// A row that has denied a call is short of tokens for a second more, however often it grants
// meanwhile.
func TestARowIsShortOfTokensForAWhileAfterADenial(t *testing.T) {
	t.Parallel()
	for what, lasts := range map[string]time.Duration{"its time is over": 3 * time.Millisecond,
		"the row grants again": time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var d Denials
			c := of("apples", "x", 5)
			is := func(c *call) bool { return d.Lately(&c.Row, &c.Ask) }
			if is(c) {
				t.Errorf("%s: short before any denial", what)
			}
			c.note(&d, deniedFor(lasts))
			time.Sleep(3 * time.Millisecond)
			for range 10 {
				c.note(&d, &algebra.Verdict{OK: true})
				if !is(c) || c.expected(&d) {
					t.Errorf("%s: short %v, and expected to be denied %v", what, is(c), c.expected(&d))
				}
				if is(of("apples", "x", 4)) || is(of("apples", "y", 5)) || is(reserve("x", 6)) {
					t.Errorf("%s: a smaller call, another key or a reservation finds it short", what)
				}
				time.Sleep(lately / 10)
			}
			if is(c) {
				t.Errorf("%s: still short after a second of grants", what)
			}
		})
	}
}

// A pause denies whatever is asked for, and until its end only; but what is reserved.
func TestInAPauseEveryDemandIsExpectedToBeDenied(t *testing.T) {
	t.Parallel()
	var d Denials
	denied := of("apples", "x", 5)
	paused := func(until time.Duration) *algebra.Verdict {
		v := deniedFor(2 * time.Hour)
		v.After.PausedUntil = noon + until.Microseconds()
		return v
	}
	denied.note(&d, paused(time.Hour))
	for _, tc := range []struct {
		c    *call
		want bool
	}{
		{of("apples", "x", 5), true},
		{of("apples", "x", 0), true},
		{reserve("x", 1), false},
	} {
		if got := tc.c.expected(&d); got != tc.want {
			t.Errorf("count %v, reserve %v: %v", tc.c.Count, tc.c.Reserve, got)
		}
	}
	denied.note(&d, paused(0))
	if denied.expected(&d) {
		t.Error("expected when the pause is over")
	}
}

// A debt may be centuries deep; how long to remember is a matter of memory, and must not overflow.
func TestFarRetryAtDoesNotOverflow(t *testing.T) {
	t.Parallel()
	var d Denials
	c := of("apples", "x", 1)
	v := deniedFor(0)
	v.At, v.RetryAt = -algebra.EndOfTime, algebra.EndOfTime
	c.note(&d, v)
	if !c.expected(&d) {
		t.Error("not expected")
	}
	if until := d.rows[c.Row].until; until.After(time.Now().Add(25 * time.Hour)) {
		t.Errorf("remembered until %v", until)
	}
}

// Keys are chosen by clients: a flood of them must not fill the memory.
func TestDenialsAreOfBoundedNumber(t *testing.T) {
	t.Parallel()
	var d Denials
	most := 0
	for i := range 3*mostDenials + 1 {
		c := of("limit", fmt.Sprint(i), 1)
		c.note(&d, deniedFor(time.Hour))
		most = max(most, len(d.rows))
		if !c.expected(&d) {
			t.Fatalf("denial %d was dropped at once", i)
		}
	}
	if most > mostDenials || len(d.rows) < mostDenials/2 {
		t.Errorf("up to %d, %d at last, of at most %d", most, len(d.rows), mostDenials)
	}
}

func TestExpiredDenialsAreDroppedFirst(t *testing.T) {
	t.Parallel()
	var d Denials
	live := of("limit", "live", 1)
	live.note(&d, deniedFor(time.Hour))
	for i := range mostDenials {
		of("limit", fmt.Sprint(i), 1).note(&d, deniedFor(0))
	}
	if !live.expected(&d) || len(d.rows) > mostDenials/2 {
		t.Errorf("the live one of %d was dropped", len(d.rows))
	}
}

func TestDenialsAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var d Denials
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				c := of("limit", fmt.Sprint((i+j)%20), 1)
				v := deniedFor(1000 * time.Second)
				v.OK = j%3 == 0
				c.note(&d, v)
				c.expected(&d)
				if j%7 == 0 {
					d.Forget(c.Row)
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
	for what, change := range map[string]func(*Denials, *call){
		"nothing":       func(*Denials, *call) {},
		"a reset":       func(d *Denials, c *call) { d.Forget(c.Row) },
		"that of a key": func(d *Denials, c *call) { d.ForgetKey(c.Key) },
	} {
		var d Denials
		c := of("apples", "x", 5)
		c.watched = d.Watch()
		change(&d, c)
		c.note(&d, deniedFor(time.Hour))
		clock := func() time.Time { return time.UnixMicro(noon) }
		if _, ok := d.Answer(&c.Row, &c.Ask, clock); ok != (what == "nothing") || !c.expected(&d) {
			t.Errorf("%s: answered %v, expected %v", what, ok, c.expected(&d))
		}
		again := of("apples", "x", 5) // not watched: what it was told may be of an older snapshot
		again.note(&d, deniedFor(time.Hour))
		if _, ok := d.Answer(&c.Row, &c.Ask, clock); ok {
			t.Errorf("%s: answered with what was not watched", what)
		}
	}
}

// A key may be cut out of something large, which is not kept with it.
func TestAKeyIsKeptWithoutWhatItWasCutFrom(t *testing.T) {
	t.Parallel()
	large := fmt.Sprintf("%01000d", 0)
	row := where.Of("limit", large[:8], 0)
	var d Denials
	for range 2 {
		d.Note(&row, &algebra.Ask{Rule: algebra.Rule{Capacity: 1, Rate: 1, Period: 1e6}, Count: 1},
			&algebra.Verdict{RetryAt: 1e6}, 0)
	}
	for r := range d.rows {
		if unsafe.StringData(r.Key) == unsafe.StringData(large) {
			t.Error("the key holds the whole string")
		}
	}
}
