package integration

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// promises are a limit with shards, used by one caller at a time, and all the work that it has
// granted.
type promises struct {
	pool      *pgxpool.Pool
	clock     *weirtest.Clock
	processes []rig.Verbs // two limiters for each way
	inTx      []rig.TxVerbs

	rule    ratelimit.Rule
	numbers rig.Numbers
	debt    float64 // MaxReserved, or +Inf
	limit   ratelimit.Limit
	other   ratelimit.Limit // for calls of several

	all     []*grantedWork
	gifts   []gift
	largest float64   // count on credit
	shards  int       // at the most
	merged  time.Time // until when a change of layout has paused some shards
	beyond  bool      // more may be owed than MaxReserved
	did     map[string]int
}

// grantedWork is what a call was granted for.
type grantedWork struct {
	res   ratelimit.Result
	count float64    // that it used
	start time.Time  // zero while it waits
	ended bool       // settled, or given back
	parts []keptPart // as they were when it started
}

// keptPart is one of several that work was taken in.
type keptPart struct {
	due   time.Time
	count float64
}

// gift is what was given back of work that was to start, or has started, at due.
type gift struct {
	at, due time.Time
	count   float64
	others  []*grantedWork // which waited then
}

// again is what was given back of other work than that which starts from one time to another, and
// may start again then: as it came back meanwhile, or as those who waited behind it have kept their
// times, with which the next ones meet.
func (p *promises) again(from, to time.Time) (sum float64) {
	for _, g := range p.gifts {
		other := g.due.Before(from) || g.due.After(to)
		meet := g.due.After(g.at) && slices.ContainsFunc(g.others, func(w *grantedWork) bool {
			return w.start.IsZero() && !w.ended || !w.start.Before(from)
		})
		if other && !g.at.After(to) && (!g.at.Before(from) || meet) {
			sum += g.count
		}
	}
	return sum
}

// slack is what rounding may do to balances as large as these.
const slack = 1e-6

func (p *promises) r() ratelimit.Request { return p.limit.For("k") }

// anyone is one of the processes, by one of the ways.
func (p *promises) anyone(t *rapid.T) rig.Verbs {
	return rapid.SampledFrom(p.processes).Draw(t, "process")
}

// openRow is a row of the present layout.
type openRow struct {
	value, capacity, rate float64
	since, pausedUntil    time.Time // zero: not paused
	origin                *time.Time
	period                int64
}

// at is what the row is worth at a time, if nobody takes.
func (r *openRow) at(at time.Time) float64 {
	steps := float64(at.Sub(r.since).Microseconds()) / float64(r.period)
	if r.origin != nil {
		window := func(at time.Time) float64 {
			return math.Floor(float64(at.Sub(*r.origin).Microseconds()) / float64(r.period))
		}
		steps = window(at) - window(r.since)
	}
	return min(r.capacity, r.value+r.rate*max(0, steps))
}

type openRows []openRow

func (rows openRows) at(at time.Time) (sum float64) {
	for i := range rows {
		sum += rows[i].at(at)
	}
	return sum
}

// there is what the rows have at a time that can be taken: no debt of one lessens it.
func (rows openRows) there(at time.Time) (sum float64) {
	for i := range rows {
		sum += max(0, rows[i].at(at))
	}
	return sum
}

func (rows openRows) paused(at time.Time) bool {
	return slices.ContainsFunc(rows, func(r openRow) bool { return r.pausedUntil.After(at) })
}

// rows reads the rows of the limit. One that was never used is one full row.
func (p *promises) rows(t *rapid.T) (all openRows) {
	rows, err := p.pool.Query(t.Context(), `SELECT value, capacity, rate, ts, paused_until, period, origin
		FROM weir_balance WHERE name = $1 AND key = 'k' AND shard >= 0 AND value > '-Infinity' ORDER BY shard`,
		p.limit.Name())
	if err != nil {
		t.Fatal(err)
	}
	var r openRow
	var paused *time.Time
	if _, err := pgx.ForEachRow(rows, []any{&r.value, &r.capacity, &r.rate, &r.since, &paused,
		&r.period, &r.origin}, func() error {
		if r.pausedUntil = (time.Time{}); paused != nil {
			r.pausedUntil = *paused
			if paused.After(r.since) {
				r.since = *paused
			}
		}
		all = append(all, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if all == nil {
		n := p.numbers
		all = openRows{{value: n.Capacity, capacity: n.Capacity, rate: n.Rate, since: p.clock.Now(),
			period: n.Period.Microseconds()}}
	}
	return all
}

// most is how many of n shards the rule can have.
func (p *promises) most(n int) int {
	if !p.numbers.Windowed {
		return max(1, min(n, int(p.numbers.Capacity)))
	}
	for ; n > 1; n-- {
		each := p.numbers.Rate / float64(n)
		of := p.numbers.Capacity / float64(n)
		if each >= 1 && of >= 1 && each == math.Trunc(each) && of == math.Trunc(of) {
			break
		}
	}
	return n
}

// due is when work that waits may run by now.
func (p *promises) due(t *rapid.T, w *grantedWork) (at time.Time) {
	if !w.start.IsZero() {
		return w.start
	}
	takes := slices.DeleteFunc(w.res.Reservation().Takes, func(k ratelimit.Take) bool {
		return k.Limit != p.limit.Name()
	})
	lines, _, err := p.inTx[0].Limiter.Lines(t.Context(), p.pool, takes...)
	if err != nil {
		t.Fatal(err)
	}
	w.parts = nil
	for i, k := range takes {
		run, _ := k.RunAt(lines[i])
		if w.parts = append(w.parts, keptPart{run, k.Count}); run.After(at) {
			at = run
		}
	}
	return at
}

// now has the clock go on, while the work starts that may.
func (p *promises) tick(t *rapid.T) {
	by := rapid.SampledFrom([]time.Duration{1, 999 * time.Microsecond, p.numbers.Period / 16,
		p.numbers.Period / 5, p.numbers.Period,
		3 * p.numbers.Period}).Draw(t, "by").Truncate(time.Microsecond)
	from, until := p.clock.Now(), p.clock.Now().Add(by)
	for _, w := range p.all {
		if at := p.due(t, w); w.start.IsZero() && !w.ended && !at.After(until) {
			w.start = at
			if at.Before(from) { // it has moved up
				w.start = from
			}
		}
	}
	p.clock.Set(until)
}

// compare is what holds at any time: no more work starts in any time than the limit allows, the
// value is the sum of the rows, and none owes more than its share of MaxReserved.
func (p *promises) compare(t *rapid.T) {
	now, rows := p.clock.Now(), p.rows(t)
	s, err := p.anyone(t).Value(t.Context(), p.r())
	p.shards = max(p.shards, len(rows))
	if err != nil || math.Abs(s.Value-rows.at(now)) > slack {
		t.Fatalf("the value is %+v, %v, and the rows have %v", s, err, rows.at(now))
	}
	for i := range rows {
		if v := rows[i].at(now); !p.beyond && v < -p.debt/float64(len(rows))-slack {
			t.Fatalf("shard %d of %d has %v: more is owed than its share of %v", i, len(rows), v, p.debt)
		}
	}
	started := slices.DeleteFunc(slices.Clone(p.all), func(w *grantedWork) bool {
		return w.start.IsZero() || w.start.After(now) || w.count == 0
	})
	slices.SortFunc(started, func(a, b *grantedWork) int {
		return cmp.Compare(a.start.UnixMicro(), b.start.UnixMicro())
	})
	n := p.numbers
	for i := range started {
		sum, kept := 0.0, 0.0
		for _, w := range started[i:] {
			sum += w.count
			steps := float64(w.start.Sub(started[i].start).Microseconds()+2) / float64(n.Period.Microseconds())
			if n.Windowed { // each begins at most once more than whole ones fit
				end := func(at time.Time) time.Time { return rig.WindowEnd(n, p.r(), at) }
				first, last := end(started[i].start.Add(-2*time.Microsecond)), end(w.start.Add(2*time.Microsecond))
				steps = math.Round(float64(last.Sub(first)) / float64(n.Period))
			}
			for _, k := range w.parts { // one that waits for the others is kept, and its shard fills up meanwhile
				if k.due.Before(started[i].start.Add(-time.Microsecond)) {
					kept += k.count
				}
			}
			if most := n.Capacity + n.Rate*steps + p.largest*float64(p.shards) +
				p.again(started[i].start, w.start) + kept; sum > most+slack {
				for _, w := range started {
					t.Logf("%v at %v of %s", w.count, w.start, rig.Show(w.res))
				}
				t.Fatalf("%v started from %v to %v, where %v may", sum, started[i].start, w.start, most)
			}
		}
	}
}
