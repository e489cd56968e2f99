package book

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

const noon = 1_700_000_000_000_000

var (
	four  = shard.Layout{Shards: 4}
	plums = where.Place{Name: "plums"}
	last  = where.Row{Place: plums, Shard: four.Row(3)}
	five  = &algebra.Ask{Rule: algebra.Rule{Capacity: 40, Rate: 40, Period: 3600e6}, Count: 5}
)

func clock() time.Time { return time.UnixMicro(noon) }

// looked are books that have a limit of 4 shards, of which only the last has anything.
func looked(t *testing.T) (*Books, *spread.Whole) {
	t.Helper()
	empty, full := algebra.Balance{Exists: true, TS: noon}, algebra.Balance{Exists: true, TS: noon, Value: 10}
	w := &spread.Whole{Layout: four, Rows: []algebra.Balance{empty, empty, empty, full}, At: noon}
	b := &Books{}
	b.Look(plums, w, nil)
	return b, w
}

// chosen are the shards from which session 7 would try to take 5.
func chosen(b *Books) []int {
	_, from, _, _ := b.Choose(plums, five, 7, clock)
	return from
}

// A look does not see what has been taken and is not committed yet, and its answer may come after
// those of later takes. Who took knows better, for a while, unless that was rolled back.
func TestALookDoesNotOverwriteWhatIsNewer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, w := looked(t)
		b.Took(last, algebra.Balance{Exists: true, TS: noon + 1, Value: 2}, 7)
		b.Look(plums, w, nil)
		if from := chosen(b); len(from) != 0 {
			t.Errorf("chose %v, which has 2 left", from)
		}
		b.Ended([]where.Row{last}, true)
		b.Look(plums, w, nil) // whose answer was late
		if from := chosen(b); len(from) != 0 {
			t.Errorf("chose %v, which has 2 left by a take that has committed", from)
		}
		b.Took(last, algebra.Balance{Exists: true, TS: noon + 1, Value: 2}, 7)
		b.Ended([]where.Row{last}, false)
		b.Look(plums, w, nil)
		if from := chosen(b); len(from) != 1 {
			t.Errorf("chose %v, where one has 10 after a rollback", from)
		}
		b.Took(last, algebra.Balance{Exists: true, TS: noon + 1, Value: 2}, 7)
		time.Sleep(lately) // its end is not known
		b.Look(plums, w, nil)
		if from := chosen(b); len(from) != 1 {
			t.Errorf("chose %v, where one has 10", from)
		}
		b.Took(last, algebra.Balance{Exists: true, TS: noon + 1, Value: 2}, 7)
		w.Rows[3] = algebra.Balance{Exists: true, TS: noon + 2, Value: 9}
		b.Look(plums, w, nil)
		if from := chosen(b); len(from) != 1 {
			t.Errorf("chose %v, where one has been filled since", from)
		}
	})
}

// What is kept of layouts that may roll back is of one size whatever keys come, and however many.
// No maker is ever forgotten for it: what its transaction sees of the layout is not noted. Nor does
// a flood keep others from noting what they see.
func TestLayoutsThatMayRollBackAreOfBoundedSize(t *testing.T) {
	t.Parallel()
	b, w := looked(t)
	transactions := []any{new(int), new(int)}
	key := func(of any) where.Place { return where.Place{Name: "plums", Key: fmt.Sprint(of)} }
	b.Making(key("first"), transactions[0])
	for i := range 60_000 {
		b.Making(key(i), transactions[i%2])
		if i%100 == 0 {
			b.Making(key(i), nil)
		}
		if n := len(b.made.at); n > mostMade {
			t.Fatalf("%d entries after %d first uses, want %d at the most", n, i+1, mostMade)
		}
	}
	for _, made := range []string{"first", "0"} {
		if b.Look(key(made), w, transactions[0]); b.Has(key(made)) {
			t.Errorf("what was made of %s may roll back, and others know of it", made)
		}
	}
	if b.Look(key("seen"), w, nil); !b.Has(key("seen")) {
		t.Error("what others have seen is not known")
	}
}

// Layouts that are known take a bounded number of pages.
func TestPagesAreOfBoundedNumber(t *testing.T) {
	t.Parallel()
	b, w := looked(t)
	for i := range mostPages/w.Shards + 1000 {
		b.Look(where.Place{Name: "plums", Key: fmt.Sprint(i)}, w, nil)
	}
	n := 0
	for _, k := range b.of {
		n += len(k.shards)
	}
	if n != b.pages || n > mostPages || n < mostPages-w.Shards {
		t.Errorf("%d pages, %d by the count, want %d at the most", n, b.pages, mostPages)
	}
}

// A take may leave a shard with a debt of twelve counts that was not known of. If it would leave
// less, it looks at all shards first.
func TestATakeLooksIfItsShardIsMuchWorse(t *testing.T) {
	t.Parallel()
	b, _ := looked(t)
	_, from, _, level := b.Choose(plums, five, 7, clock)
	if want := -12 * five.Count; len(from) != 1 || level != want {
		t.Errorf("chose %v, and the take may leave %v, want %v", from, level, want)
	}
	b.Asked(plums, 4*five.Count) // the mean of the calls, which have made it worse
	_, _, _, level = b.Choose(plums, five, 7, clock)
	if want := -MuchWorse * 4 * five.Count; level != want {
		t.Errorf("a take of less than others may leave %v, want %v", level, want)
	}
}
