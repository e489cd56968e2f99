package inhand

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// noon is a round instant well after the epoch, in microseconds.
var noon = time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()

// leased is a row, by the algebra, and what several leases have of it in hand. Time is virtual, in
// nanoseconds, and each lease's clock began at another time.
type leased struct {
	a      algebra.Rule
	now    int64
	skew   int64 // by how much the clock of one of two nodes is ahead, in microseconds
	row    algebra.Balance
	hands  []*holding
	giving []*giving
	taken  []event // handed out for good
	log    []string
}

// holding is a block and the clock of its lease.
type holding struct {
	Block
	ahead int64 // of the clock
	lent  []float64
}

// giving is a statement that is under way.
type giving struct {
	b          *Block
	n, most    float64
	at, expiry int64
}

type event struct {
	at int64 // in microseconds
	n  float64
}

func (m *leased) micros() int64 { return m.now / 1000 }

func (m *leased) say(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%d ", m.now)+fmt.Sprintf(format, args...))
}

// take takes n from the row, if it has as much by a clock that is ahead by so much.
func (m *leased) take(n float64, ahead int64) (algebra.Balance, bool) {
	at, clock := m.row, m.micros()+ahead
	at.Value, at.TS = m.a.Refilled(m.row.Value, m.row.TS, clock), max(m.row.TS, clock)
	if at.Value < n {
		return m.row, false
	}
	at.Value -= n
	m.row = at
	return at, true
}

// step does what a time's passing does: what was in hand for long enough is in nobody's hand.
func (m *leased) step() {
	m.hands = slices.DeleteFunc(m.hands, func(h *holding) bool {
		return m.now+h.ahead >= h.Sent+int64(Kept)
	})
}

// inHand is what may be handed out now.
func (m *leased) inHand() float64 {
	sum := 0.0
	for _, h := range m.hands {
		sum += max(0, min(h.Left, h.Bound(m.now+h.ahead)))
	}
	return sum
}

func (m *leased) check(t *rapid.T) {
	has, hand := m.a.Refilled(m.row.Value, m.row.TS, m.micros()+m.skew), m.inHand()
	if has+hand > (m.a.Capacity+m.flows(m.micros(), m.micros()+m.skew))*(1+1e-9) {
		for _, line := range m.log {
			t.Log(line)
		}
		t.Fatalf("at %d the row has %v, and %v are in hand: more than the capacity of %v", m.now,
			has, hand, m.a.Capacity)
	}
}

// flows is what may flow in between two times, in microseconds.
func (m *leased) flows(from, to int64) float64 {
	if m.a.Windowed {
		return m.a.Rate * float64(m.a.Window(to)-m.a.Window(from))
	}
	return m.a.Rate * float64(to-from) / float64(m.a.Period)
}

// What lies in the row and what is in hand is never more than the capacity, and in no interval is
// more handed out than the capacity and what flows in: for any number of leases, whatever they
// take, lend, hand out and give back, however long their statements are under way, and though
// others take, too.
func TestWhatIsInHandAndInTheRowIsNeverMoreThanTheCapacity(t *testing.T) {
	t.Parallel()
	for range 20 {
		rapid.Check(t, func(t *rapid.T) { leasedHistory(t, 0) })
	}
}

// On Citus each of several callers may take by the clock of another node. If one is ahead of the
// other, that is worth what flows in during the difference, and no more.
func TestLeasesByTwoClocksGainTheirDifferenceOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		rapid.Check(t, func(t *rapid.T) {
			leasedHistory(t, rapid.Int64Range(1, 5_000_000).Draw(t, "skew"))
		})
	}
}

func leasedHistory(t *rapid.T, skew int64) {
	capacity := rapid.Float64Range(1, 100).Draw(t, "capacity")
	fill := rapid.Int64Range(10_000, 20_000_000).Draw(t, "microseconds to fill")
	m := &leased{now: noon * 1000, skew: skew}
	node := func() int64 {
		if skew == 0 {
			return 0
		}
		return rapid.SampledFrom([]int64{0, skew}).Draw(t, "node")
	}
	m.a = algebra.Rule{Capacity: capacity, Rate: capacity, Period: fill}
	if rapid.Bool().Draw(t, "window") {
		parts := rapid.Int64Range(1, 4).Draw(t, "windows to fill")
		m.a = algebra.Rule{Windowed: true, Capacity: capacity, Rate: capacity / float64(parts),
			Period: fill / parts, Origin: algebra.Anchor}
	}
	m.row = algebra.Balance{Exists: true, Value: capacity, TS: m.micros(), PausedUntil: algebra.Open}
	first := m.micros()

	share := func(name string) float64 { return rapid.Float64Range(0, 1).Draw(t, name) }
	pick := func() *holding { return m.hands[rapid.IntRange(0, len(m.hands)-1).Draw(t, "which")] }
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		m.now += rapid.OneOf(rapid.Int64Range(0, 1_000_000), rapid.Int64Range(0, 700_000_000),
			rapid.Just(fill*1000/4)).Draw(t, "later")
		m.step()
		m.check(t)
		switch what := rapid.IntRange(0, 6).Draw(t, "what"); {
		case what <= 1: // a lease takes a block
			ahead := rapid.Int64Range(-1e12, 1e12).Draw(t, "ahead")
			sent := m.now + ahead - 1000 - rapid.Int64Range(0, 50_000_000).Draw(t, "under way")
			n := capacity * share("of the capacity")
			if left, ok := m.take(n, node()); ok {
				m.hands = append(m.hands, &holding{Block: New(&m.a, n, left.Value, left.TS, sent), ahead: ahead})
				m.say("takes %v, leaves %v", n, left.Value)
			}
		case what == 2: // somebody else takes
			n := capacity * share("of the capacity")
			if _, ok := m.take(n, node()); ok {
				m.taken = append(m.taken, event{m.micros(), n})
				m.say("other takes %v, leaves %v", n, m.row.Value)
			}
		case len(m.hands) == 0:
		case what == 3: // a lease hands out
			h, used := pick(), 0.0
			n := min(h.Left, h.Bound(m.now+h.ahead)) * share("of the hand")
			if n > 0 && h.Draw(n, m.now+h.ahead, &used) {
				m.taken = append(m.taken, event{m.micros(), n})
				m.say("hands out %v", n)
			}
		case what == 4: // a lease lends, or is returned what it has lent
			h, used := pick(), 0.0
			if k := len(h.lent) - 1; k >= 0 {
				h.Left += h.lent[k]
				h.lent = h.lent[:k]
				m.say("is returned")
			} else if n := h.Left * share("of the hand"); h.Draw(n, m.now+h.ahead, &used) {
				h.lent = append(h.lent, n)
				m.say("lends %v", n)
			}
		default: // a lease gives back
			h := pick()
			now := m.now + h.ahead
			limit := min(now+int64(Late), h.Sent+int64(Kept+Late)) - now
			m.giving = append(m.giving, &giving{&h.Block, h.Back(now), max(0, min(h.Left, h.Bound(now))),
				m.now + rapid.Int64Range(0, int64(2*Late)).Draw(t, "under way"), m.now + limit})
			m.hands = slices.DeleteFunc(m.hands, func(other *holding) bool { return other == h })
			m.say("begins to give back %v of %v", h.Back(now), h.Left)
		}
		m.giving = slices.DeleteFunc(m.giving, func(g *giving) bool {
			switch {
			case m.now > g.expiry:
				return true
			case m.now < g.at:
				return false
			}
			as := m.row
			n := g.n
			if as.TS == g.b.At && as.Value == g.b.Value {
				n = max(n, g.most)
			}
			if m.a.Windowed && m.a.Window(as.TS) > m.a.Window(g.b.At) {
				n = 0 // as the statement that gives back has it
			}
			m.row.Value = max(m.row.Value, min(m.a.Capacity, m.row.Value+n))
			m.say("gives back %v: %v", n, m.row.Value)
			return true
		})
		m.check(t)
	}
	for i := range m.taken {
		sum := 0.0
		for j := i; j < len(m.taken); j++ {
			sum += m.taken[j].n
			if most := m.a.Capacity + m.flows(m.taken[i].at, m.taken[j].at+skew); sum > most*(1+1e-9) {
				t.Fatalf("%v were handed out between %d and %d: at most %v", sum,
					m.taken[i].at-first, m.taken[j].at-first, most)
			}
		}
	}
}

// What is in hand overflows at the rate of the limit as soon as the row is full without it, and
// lasts as long as it is not.
func TestTokensInHandSpoilAsTheyWouldHaveOverflowed(t *testing.T) {
	t.Parallel()
	bucket := algebra.Rule{Rate: 10, Period: 1_000_000, Capacity: 20}
	window := algebra.Rule{Windowed: true, Rate: 10, Period: 100_000, Capacity: 25, Origin: noon}
	at := func(after time.Duration) int64 { return int64(after) }
	for _, tc := range []struct {
		name  string
		rule  algebra.Rule
		took  float64
		left  float64
		after time.Duration
		want  float64
	}{
		{"full: at once", bucket, 10, 10, 0, 10},
		{"full: with the rate", bucket, 10, 10, 300 * time.Millisecond, 7},
		{"full: all of it", bucket, 5, 15, 500 * time.Millisecond, 0},
		{"not full: nothing", bucket, 5, 5, 999 * time.Millisecond, 5},
		{"not full: as soon as it is", bucket, 8, 5, 900 * time.Millisecond, 6},
		{"kept for a second", bucket, 5, 0, time.Second, 0},
		{"window: not before the next", window, 20, 5, 99 * time.Millisecond, 20},
		{"window: what does not fit", window, 20, 5, 100 * time.Millisecond, 10},
		{"window: what does not fit into the second", window, 20, 5, 200 * time.Millisecond, 0},
		{"window: all fits", window, 5, 0, 200 * time.Millisecond, 5},
	} {
		// As it is looked at for the first time, and as it is looked at all the time.
		for _, looks := range []time.Duration{0, 1, 7} {
			b := New(&tc.rule, tc.took, tc.left, noon, 0)
			used := 0.0
			for i := range looks {
				b.Spoil(at(tc.after*(i+1)/looks), &used)
			}
			if looks == 0 && at(tc.after) >= b.until { // from here on it has to be looked at
				b.Spoil(at(tc.after), &used)
			}
			const little = 1e-6
			if b.Draw(tc.want+little, at(tc.after), &used) {
				t.Errorf("%s: more than %v can be handed out", tc.name, tc.want)
			}
			if tc.want > 0 && !b.Draw(tc.want-little, at(tc.after), &used) {
				t.Errorf("%s: less than %v can be handed out", tc.name, tc.want)
			}
		}
	}
}
