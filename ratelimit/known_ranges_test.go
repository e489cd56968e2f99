package ratelimit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/ranges"
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
	k.known.Store(ranges.Of([]int32{-1 << 31}))
	k.doubt(&pgconn.PgError{Code: "40001"})
	if _, known := k.find("k"); !known {
		t.Error("a conflict put them in doubt")
	}
	k.doubt(&pgconn.PgError{Code: "0A000"})
	if _, known := k.find("k"); known {
		t.Error("they are still believed")
	}
}
