package ratelimit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/limits/ranges"
	"github.com/weir-go/weir/internal/limits/where"
)

// On Citus a batch is of the calls for keys of one range, in their order, and one statement reaches
// their rows. While the ranges are not known, and in the portable form, it is of one key.
func TestABatchIsOfOneRange(t *testing.T) {
	t.Parallel()
	queue := func() (all []*waiter) {
		for i := range 40 {
			all = append(all, &waiter{calls: resolved(t, apples.For(fmt.Sprint(i%20))), order: int64(i)})
		}
		return all
	}
	two := ranges.Of([]int32{-1 << 31, 0})
	for name, c := range map[string]struct {
		cfg    Config
		known  *ranges.Ranges
		same   func(a, b string) bool
		number int // of statements for a batch
	}{
		"Known":    {Config{Citus: true}, two, func(a, b string) bool { return two.Find(a) == two.Find(b) }, 1},
		"NotKnown": {Config{Citus: true}, nil, func(a, b string) bool { return a == b }, 1},
		"Portable": {Config{Portable: true}, nil, func(a, b string) bool { return a == b }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := limiterFor(t, c.cfg)
			l.ranges.known.Store(c.known)
			all := queue()
			some, others := l.ofOneNode(slices.Clone(all))
			key := all[0].calls[0].Key
			if len(some)+len(others) != len(all) || len(some) < 2 {
				t.Fatalf("%d and %d of %d", len(some), len(others), len(all))
			}
			for in, part := range map[bool][]*waiter{true: some, false: others} {
				for i, w := range part {
					if c.same(w.calls[0].Key, key) != in || i > 0 && part[i-1].order > w.order {
						t.Errorf("call %d for key %s, with %s: %v", w.order, w.calls[0].Key, key, in)
					}
				}
			}
			rows := []*standing{{c: &some[0].calls[0]}, {c: &some[1].calls[0]}}
			for of, statements := range map[string][]*statement{
				"take": l.takeMany(rows, false), "look": l.lookMany(rows), "lock": l.lockMany(rows),
			} {
				if byKeys := strings.Contains(statements[0].sql, "key = ANY"); len(statements) != c.number ||
					byKeys != (c.number == 1) {
					t.Errorf("%s: %d statements for two rows, by their keys: %v", of, len(statements), byKeys)
				}
			}
			rows[1] = &standing{c: &others[0].calls[0]}
			if n := len(l.takeMany(rows, false)); n != 2 {
				t.Errorf("%d statements for two rows in two places", n)
			}
		})
	}
}

// The rows of a batch are inserted one by one, so it has a bounded number of keys, and any number of
// calls for these.
func TestABatchHasABoundedNumberOfKeys(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{Citus: true})
	l.ranges.known.Store(ranges.Of([]int32{-1 << 31}))
	var all []*waiter
	for i := range 4 * mostKeys {
		all = append(all, &waiter{calls: resolved(t, apples.For(fmt.Sprint(i%(2*mostKeys))))})
	}
	some, others := l.ofOneNode(all)
	keys := map[string]bool{}
	for _, w := range some {
		keys[w.calls[0].Key] = true
	}
	if len(keys) != mostKeys || len(some) != 2*mostKeys || len(others) != 2*mostKeys {
		t.Errorf("%d calls for %d keys, and %d others", len(some), len(keys), len(others))
	}
}

// Suspects that are inserted together have their rows on one node, too.
func TestSuspectsOfTwoRangesAreInsertedApart(t *testing.T) {
	t.Parallel()
	two := ranges.Of([]int32{-1 << 31, 0})
	for name, c := range map[string]struct {
		cfg  Config
		want func(a, b string) bool
	}{
		"Citus":    {Config{Citus: true}, func(a, b string) bool { return two.Find(a) == two.Find(b) }},
		"Portable": {Config{Portable: true}, func(a, b string) bool { return a == b }},
		"Plain":    {Config{}, func(string, string) bool { return true }},
	} {
		l := limiterFor(t, c.cfg)
		if c.cfg.Citus {
			l.ranges.known.Store(two)
		}
		h := &held{c: &Coalesced{Autocommit: l.Autocommit(nil)}, rows: map[where.Place]*heldRow{}}
		for i := range 20 {
			at := where.Place{Name: "apples", Key: fmt.Sprint(i)}
			h.rows[at] = &heldRow{at: at, most: 20}
		}
		rows := h.pick(suspects, time.Now())
		want := 0
		for at := range h.rows {
			if c.want(at.Key, rows[0].at.Key) {
				want++
			}
		}
		for _, r := range rows {
			if !c.want(r.at.Key, rows[0].at.Key) {
				t.Errorf("%s: the row of %s is inserted with that of %s", name, r.at.Key, rows[0].at.Key)
			}
		}
		if len(rows) != want {
			t.Errorf("%s: %d rows are inserted together, want %d", name, len(rows), want)
		}
	}
}

// The calls for keys of one range share a lane, so that they come together.
func TestARangeHasItsLane(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{Citus: true})
	c := l.Coalesce(nil)
	two := ranges.Of([]int32{-1 << 31, 0})
	l.ranges.known.Store(two)
	var lanes [2]*lane
	for i := range 40 {
		key := fmt.Sprint(i)
		n := c.lane(&waiter{calls: resolved(t, apples.For(key))})
		if of := &lanes[two.Find(key)]; *of == nil {
			*of = n
		} else if *of != n {
			t.Errorf("key %s has another lane than others of its range", key)
		}
	}
	if lanes[0] == lanes[1] {
		t.Error("both ranges have one lane")
	}
}

// A statement that Citus refuses means that the ranges may have changed. Other errors do not.
func TestRefusedStatementsPutTheRangesInDoubt(t *testing.T) {
	t.Parallel()
	var k knownRanges
	refused := &pgconn.PgError{Code: "0A000"}
	k.note([]int32{-1 << 31})
	planned := k.known.Load()
	k.doubt(planned, &pgconn.PgError{Code: "40001"})
	if _, known := k.find("k"); !known {
		t.Error("a conflict put them in doubt")
	}
	k.doubt(planned, refused)
	if _, known := k.find("k"); known {
		t.Error("they are still believed")
	}
	k.note([]int32{-1 << 31, 0})
	k.doubt(planned, refused) // what was planned before does not count
	if _, known := k.find("k"); !known || k.pause != rangesEvery {
		t.Errorf("the new ones are known: %v; they may be read again after %v", known, k.pause)
	}
	for range 20 { // they are refused for another reason
		k.doubt(k.known.Load(), refused)
		k.note([]int32{-1 << 31, 0})
	}
	if k.pause != rangesSeldomer {
		t.Errorf("they may be read again after %v", k.pause)
	}
}
