package integration

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// A line of work before one limit: all of it is reserved at the beginning, starts when its
// reservation says by then, and takes its time to find out what it has used. Tokens are counted in
// quarters, and a token comes every 1024 microseconds: so all sums are exact.

const perToken = 1024 // microseconds

// piece is a piece of work. Instants are in microseconds after the beginning; -1 for not yet.
type piece struct {
	r              ratelimit.Reservation
	count, used    int64 // quarters of a token
	lasts          int64
	start, settled int64
}

type line struct {
	t     *testing.T
	a     *ratelimit.Autocommit
	clock *weirtest.Clock
	ask   ratelimit.Request
	work  []*piece
}

func (l *line) now() int64 { return l.clock.Now().Sub(rig.Noon).Microseconds() }

func newLine(t *testing.T, rule ratelimit.Rule, n int, draw func(*rand.Rand) piece) *line {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := &line{t: t, clock: weirtest.NewClock(rig.Noon), ask: ratelimit.MustDefine("line", rule).For("k")}
	l.a = rig.Limiter(t, ratelimit.Config{Clock: l.clock.Now}).Autocommit(pgtest.Pool(t))
	for range n {
		p := draw(random)
		res := takeOK(t, first(l.a.RateLimit(t.Context(), l.ask.Count(float64(p.count)/4).OrReserve())))
		p.r, p.start, p.settled = res.Reservation(), -1, -1
		l.work = append(l.work, &p)
	}
	return l
}

// run lets the clock go from one event to the next until all is settled.
func (l *line) run() {
	l.t.Helper()
	for {
		s, err := l.a.Value(l.t.Context(), l.ask)
		if err != nil {
			l.t.Fatal(err)
		}
		now, next := l.now(), int64(math.MaxInt64)
		var ended *piece
		for _, p := range l.work {
			at := p.start + p.lasts
			switch {
			case p.settled >= 0:
				continue
			case p.start < 0:
				run, _ := p.r.Takes[0].RunAt(s)
				if at = run.Sub(rig.Noon).Microseconds(); at <= now {
					p.start = now
					at = now + p.lasts
				}
			}
			if p.start >= 0 && at <= now {
				ended = p
				break
			}
			next = min(next, at)
		}
		switch {
		case ended != nil:
			ok, err := l.a.Settle(l.t.Context(), ended.r, l.ask.Count(float64(ended.used)/4))
			if err != nil || !ok {
				l.t.Fatal(ok, err)
			}
			ended.settled = now
		case next == math.MaxInt64:
			return
		default:
			l.clock.Set(rig.Noon.Add(rig.Micros(next)))
		}
	}
}

// held is what a piece of work counts for at an instant.
func (p *piece) held(at int64) int64 {
	if p.settled >= 0 && p.settled <= at {
		return p.used
	}
	return p.count
}

// excess is the most that what began in an interval holds at its end, above the capacity and what
// flows in during it; late also takes away what was given back in it by what had begun before. In
// quarters of a token times the microseconds for one.
func (l *line) excess(capacity int64, late bool) int64 {
	most := int64(math.MinInt64)
	for _, from := range l.work {
		for _, to := range l.work {
			a, b := from.start, to.start
			sum := -4 * capacity
			for _, p := range l.work {
				switch {
				case p.start >= a && p.start <= b:
					sum += p.held(b)
				case late && p.start < a && p.settled >= a && p.settled <= b:
					sum -= p.count - p.used
				}
			}
			if b >= a {
				most = max(most, sum*perToken-4*(b-a))
			}
		}
	}
	return most
}

// busy is the share of the tokens up to the last start that was used or held by then.
func (l *line) busy(capacity int64) float64 {
	last := l.last()
	var sum int64
	for _, p := range l.work {
		sum += p.held(last)
	}
	return float64(sum*perToken) / float64(4*(capacity*perToken+last))
}

func (l *line) last() (last int64) {
	for _, p := range l.work {
		last = max(last, p.start)
	}
	return last
}

// Those who wait come earlier by what others did not use, so that nothing lies idle; and what began
// in any interval never holds more than the capacity, what flowed in, and what was given back in it
// by work that had begun before. That last part is why a line of long work comes in bursts; with
// work that is short, against the time that it takes to fill the bucket, the capacity has room for
// it.
func TestTheLineMovesUpByWhatIsNotUsed(t *testing.T) {
	t.Parallel()
	const capacity = 100
	for name, c := range map[string]struct {
		most, lasts int64 // tokens; microseconds
		late        bool
	}{
		"ShortWork":   {8, 10 * perToken, false},
		"LongWork":    {40, 100 * perToken, true},
		"EndlessWork": {40, 1000 * perToken, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := ratelimit.TokenBucket{Rate: 1, Period: rig.Micros(perToken), Capacity: ratelimit.Tokens(capacity)}
			l := newLine(t, rule, 200, func(r *rand.Rand) piece {
				n := 1 + r.Int64N(4*c.most)
				return piece{count: n, used: r.Int64N(n + 1), lasts: r.Int64N(c.lasts)}
			})
			l.run()
			if over := l.excess(capacity, c.late); over > 0 {
				t.Errorf("%v tokens too many in some interval", float64(over)/4/perToken)
			}
			if busy := l.busy(capacity); busy < 0.95 || busy > 1 {
				t.Errorf("%v of the tokens were used or held while work waited", busy)
			}
		})
	}
}

// A window lets in those who wait for the next one for what was not used of it, and never more than
// its rate. Where a piece of work has tokens of two windows, it begins with the second: that sees
// the part of the first on top.
func TestTheLineMovesUpWithinAWindow(t *testing.T) {
	t.Parallel()
	const rate, length = 20, 20 * perToken
	for name, c := range map[string]struct {
		most, lasts int64 // quarters of a token; microseconds, each as long if negative
		busy        float64
	}{
		"InOrder": {4, -10, 0.95},
		// Those who settle after others that came later get less: in a simulation 0.904 of the tokens on
		// average, with a standard deviation of 0.027. If nobody moved up it would be half of them.
		"OutOfOrder": {4, length / 20, 0.77},
		"Late":       {4, 2 * length, 0.35},
		"OfAllSizes": {4 * rate, length, 0.4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, ratelimit.FixedWindow{Rate: rate, Period: rig.Micros(length), Start: rig.Noon},
				200, func(r *rand.Rand) piece {
					p := piece{count: 4, used: 4 * r.Int64N(2), lasts: max(c.lasts, -c.lasts)}
					if c.most > 4 {
						p.count = 1 + r.Int64N(c.most)
						p.used = r.Int64N(p.count + 1)
					}
					if c.lasts > 0 {
						p.lasts = r.Int64N(c.lasts)
					}
					return p
				})
			l.run()
			grain := int64(4) // of the counts
			if c.most > 4 {
				grain = 1
			}
			last, used := l.last()/length, int64(0)
			for _, p := range l.work {
				if p.start/length < last {
					used += p.used
				}
				sum := int64(0)
				for _, q := range l.work {
					if q.start/length == p.start/length && q.start <= p.start {
						sum += q.held(p.start)
					}
				}
				if sum > 4*rate+c.most-grain {
					t.Errorf("%v tokens in the window of %v", float64(sum)/4, rig.Micros(p.start))
				}
			}
			busy := float64(used) / float64(4*rate*last)
			if t.Logf("%.3f of the tokens were used", busy); busy < c.busy {
				t.Errorf("%v of the tokens were used while work waited", busy)
			}
		})
	}
}
