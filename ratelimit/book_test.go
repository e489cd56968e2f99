package ratelimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/algebra"
	"github.com/weir-go/weir/internal/spread"
	"github.com/weir-go/weir/internal/where"
	"github.com/weir-go/weir/shard"
)

var four = shard.Layout{Shards: 4}

var plums = MustDefine("plums", TokenBucket{Rate: 40, Period: time.Hour}, Shards(4))

// looked is a limiter that has looked at a limit of 4 shards, of which only the last has anything.
func looked(t *testing.T) (l *Limiter, c []call, w *spread.Whole) {
	t.Helper()
	l, err := New(Config{Clock: func() time.Time { return time.UnixMicro(noon) }})
	if err != nil {
		t.Fatal(err)
	}
	c = resolved(t, plums.Global().Count(5))
	empty, full := algebra.Balance{Exists: true, TS: noon}, algebra.Balance{Exists: true, TS: noon, Value: 10}
	w = &spread.Whole{Layout: four, Rows: []algebra.Balance{empty, empty, empty, full}, At: noon}
	l.books.look(&c[0], w, nil)
	return l, c, w
}

// row3 is the last of four shards.
func row3(c *call) *call {
	row := c.of(four, 3)
	return &row
}

// known is the layout that a limit is known to have.
func known(l *Limiter, c *call) shard.Layout {
	layout, _ := l.books.layout(c)
	return layout
}

// Between a look and the choice that follows another caller of the process may have emptied the
// shard that was seen to have enough, or have learnt of another number of shards. Then the take
// goes by what was seen.
func TestTheBooksMayChangeBetweenALookAndTheChoice(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Limiter, *call){
		"nothing":   func(*Limiter, *call) {},
		"taken":     func(l *Limiter, c *call) { l.books.took(row3(c), algebra.Balance{Exists: true, TS: noon}, 1) },
		"forgotten": func(l *Limiter, c *call) { l.books.forget(c) },
		"more shards": func(l *Limiter, c *call) {
			l.books.look(c, &spread.Whole{Layout: shard.Layout{Shards: 8}, Rows: make([]algebra.Balance, 8), At: noon}, nil)
		},
	} {
		l, c, w := looked(t)
		change(l, &c[0])
		aims := make([]aim, 1)
		l.aim(sqlExecutor{}, c, aims, []*spread.Whole{w}, false)
		l.send(&aims[0], 0)
		if sent := aims[0].sent; len(sent) != 1 || sent[0].c.Shard != four.Row(3) {
			t.Errorf("%s: aimed at %+v", name, aims[0])
		}
	}
}

// A look does not see what has been taken and is not committed yet. Who took it knows better, for a
// while.
func TestALookDoesNotOverwriteWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	l, c, w := looked(t)
	l.books.took(row3(&c[0]), algebra.Balance{Exists: true, TS: noon + 1, Value: 2}, 7)
	l.books.look(&c[0], w, nil)
	if _, from, _, _ := l.books.choose(&c[0], 7, l.clock); len(from) != 0 {
		t.Errorf("chose %v, which has 2 left", from)
	}
	k := l.books.of[c[0].Place]
	k.shards[3].taken = k.shards[3].taken.Add(-lately) // it was rolled back, or has never been seen to be committed
	l.books.look(&c[0], w, nil)
	if _, from, _, _ := l.books.choose(&c[0], 7, l.clock); len(from) != 1 {
		t.Errorf("chose %v, where one has 10", from)
	}
	l.books.took(row3(&c[0]), algebra.Balance{Exists: true, TS: noon + 1, Value: 2}, 7)
	w.Rows[3] = algebra.Balance{Exists: true, TS: noon + 2, Value: 9}
	l.books.look(&c[0], w, nil)
	if _, from, _, _ := l.books.choose(&c[0], 7, l.clock); len(from) != 1 {
		t.Errorf("chose %v, where one has been filled since", from)
	}
}

// What is kept of layouts that may roll back is of one size whatever keys come, and however many.
// No maker is ever forgotten for it: what its transaction sees of the layout is not noted. Nor does
// a flood keep others from noting what they see.
func TestLayoutsThatMayRollBackAreOfBoundedSize(t *testing.T) {
	t.Parallel()
	l, c, w := looked(t)
	transactions := []any{new(int), new(int)}
	first := call{Row: where.Of(c[0].Name, "first", 0)}
	l.books.making(&first, transactions[0])
	own := &attempt{l: l}
	for i := range 60_000 {
		flood := call{Row: where.Of(c[0].Name, fmt.Sprint(i), 0)}
		l.books.making(&flood, transactions[i%2])
		if i%100 == 0 {
			l.books.making(&flood, own)
		}
		if n := len(l.books.made.at); n > mostMade {
			t.Fatalf("%d entries after %d first uses, want %d at the most", n, i+1, mostMade)
		}
	}
	for _, by := range []any{transactions[0], own} {
		made := call{Ask: algebra.Ask{Rule: c[0].Rule}, Row: where.Of(c[0].Name, "0", 0)}
		if l.books.look(&made, w, by); known(l, &made) != (shard.Layout{}) {
			t.Errorf("what %T made may roll back, and others know of it", by)
		}
	}
	for i, by := range []any{nil, &attempt{l: l}} {
		seen := call{Ask: algebra.Ask{Rule: c[0].Rule}, Row: where.Of(c[0].Name, fmt.Sprint("seen ", i), 0)}
		if l.books.look(&seen, w, by); known(l, &seen) != w.Layout {
			t.Errorf("what %T has seen is not known", by)
		}
	}
}

// Layouts that are known take a bounded number of pages.
func TestPagesAreOfBoundedNumber(t *testing.T) {
	t.Parallel()
	l, c, w := looked(t)
	for i := range mostPages/w.Shards + 1000 {
		l.books.look(&call{Ask: algebra.Ask{Rule: c[0].Rule}, Row: where.Of(c[0].Name, fmt.Sprint(i), 0)}, w, nil)
	}
	n := 0
	for _, k := range l.books.of {
		n += len(k.shards)
	}
	if n != l.books.pages || n > mostPages || n < mostPages-w.Shards {
		t.Errorf("%d pages, %d by the count, want %d at the most", n, l.books.pages, mostPages)
	}
}
