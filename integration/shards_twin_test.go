package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// twins are a limit with shards and one without, of one rule. Whatever the first grants is taken from the second as well, and
// whatever else is done to one is done to the other.
type twins struct {
	pool      *pgxpool.Pool
	clock     *clock
	processes []verbs // two limiters for each way
	renewers  []txVerbs
	plain     txVerbs // for the second of the two

	rule           ratelimit.Rule
	sharded, alone ratelimit.Limit
	n              int // shards at the most, so far
	level          bool

	other ratelimit.Limit // for calls of several
	kept  []bothGranted
	did   map[string]int
}

// bothGranted is a call that both have granted, when they were level or not.
type bothGranted struct {
	sharded, alone ratelimit.Result
	level          bool
}

func (w *twins) many() ratelimit.Request { return w.sharded.For("k") }
func (w *twins) one() ratelimit.Request  { return w.alone.For("k") }

// anyone is one of the processes, by one of the ways.
func (w *twins) anyone(t *rapid.T) verbs { return rapid.SampledFrom(w.processes).Draw(t, "process") }

func (w *twins) value(t *rapid.T, v verbs, r ratelimit.Request) ratelimit.State {
	s, err := v.Value(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// slack is what rounding may do to balances as large as these.
const slack = 1e-6

// rows is the sum of what the open rows are worth now.
func (w *twins) rows(t *rapid.T) (sum float64) {
	rows, err := w.pool.Query(t.Context(), `SELECT b.value, b.capacity, b.rate, greatest(b.ts, b.paused_until), b.period, b.origin,
			CASE WHEN h.value IS NULL THEN 1 ELSE h.value END, b.paused_until IS NOT NULL AND b.paused_until > $2
		FROM weir_balance b LEFT JOIN weir_balance h ON h.name = b.name AND h.key = b.key AND h.shard = -1
		WHERE b.name = $1 AND b.key = 'k' AND b.shard >= 0 AND b.value > '-Infinity'`, w.sharded.Name(), w.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	var value, capacity, rate, n float64
	var since time.Time
	var origin *time.Time
	var period int64
	var paused bool
	open := 0
	if _, err := pgx.ForEachRow(rows, []any{&value, &capacity, &rate, &since, &period, &origin, &n, &paused}, func() error {
		open++
		steps := max(0, float64(w.clock.now().Sub(since).Microseconds())/float64(period))
		if origin != nil {
			window := func(at time.Time) float64 {
				return math.Floor(float64(at.Sub(*origin).Microseconds()) / float64(period))
			}
			steps = max(0, window(w.clock.now())-window(since))
		}
		sum += min(capacity, value+rate*steps)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if open != 0 && open != int(n) {
		t.Fatalf("%d open rows of %v shards", open, n)
	}
	if open == 0 {
		return numbersOf(w.rule).capacity
	}
	return sum
}

// compare is what holds at any time.
func (w *twins) compare(t *rapid.T) {
	many, one := w.value(t, w.anyone(t), w.many()), w.value(t, w.plain, w.one())
	if many.Value > one.Value+slack {
		t.Fatalf("with shards there are %v tokens, and one balance would have %v", many.Value, one.Value)
	}
	if sum := w.rows(t); math.Abs(sum-many.Value) > slack {
		t.Fatalf("the value is %v, and the rows have %v", many.Value, sum)
	}
	if many.Delay != one.Delay || !many.PausedUntil.Equal(one.PausedUntil) {
		t.Fatalf("with shards %+v, and one balance %+v", many, one)
	}
	w.level = w.level && math.Abs(many.Value-one.Value) <= slack
}

// tryAt makes the call at another time, in a transaction that is rolled back.
func (w *twins) tryAt(t *rapid.T, at time.Time, r ...ratelimit.Request) bool {
	now := w.clock.now()
	w.clock.set(at)
	defer w.clock.set(now)
	ok := false
	v := rapid.SampledFrom(w.renewers).Draw(t, "process")
	err := v.do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		res, err := v.l.RateLimit(ctx, tx, r...)
		if ok = res.OK; err != nil {
			return err
		}
		return errUndo
	})
	if !errors.Is(err, errUndo) {
		t.Fatal(err)
	}
	return ok
}

func (w *twins) take(t *rapid.T) {
	n := numbersOf(w.rule)
	count := rapid.SampledFrom([]float64{0, 0.25, 0.5, 1, 1, 2, 3, n.capacity / 3, n.capacity * 0.7, n.capacity}).Draw(t, "count")
	count = min(count, n.capacity)
	reserve, bounded := anyAhead(t, n.period)
	leave := 0.0
	if rapid.IntRange(0, 5).Draw(t, "leaving") == 0 {
		leave = (n.capacity - count) * rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "leave") * (1 - 1e-9)
		reserve, bounded = func(r ratelimit.Request) ratelimit.Request { return r.Leave(leave) }, false
	}
	many, one := []ratelimit.Request{reserve(w.many().Count(count))}, []ratelimit.Request{reserve(w.one().Count(count))}
	if rapid.IntRange(0, 4).Draw(t, "several") == 0 { // the other has always enough
		many = append(many, w.other.For("k"))
	}
	v := w.anyone(t)
	checked, err := w.anyone(t).CheckRateLimit(t.Context(), many...)
	if err != nil {
		t.Fatal(err)
	}
	before := w.value(t, v, w.many())
	res, err := v.RateLimit(t.Context(), many...)
	if err != nil {
		t.Fatal(err)
	}
	// Between the two the limit may have got back the shards of who takes: other shares, which round otherwise. What is there to the
	// last bit may then be enough for one of them.
	left := before.Value - count - leave
	if math.Abs(left) > slack && (res.OK != checked.OK || res.RetryAt.Sub(checked.RetryAt).Abs() > w.edge(left) || !w.sameRun(res, checked, count)) {
		t.Fatalf("checked %s\nbut then %s\nof %+v", show(checked), show(res), before)
	}
	if !res.OK {
		w.did["denied"]++
		if !w.tryAt(t, res.RetryAt, many...) {
			t.Fatalf("denied at %v of %+v, and at RetryAt: %s", w.clock.now(), before, show(res))
		}
		if early := w.edge(before.Value, before.Value-count); w.tryAt(t, res.RetryAt.Add(-early), many...) {
			t.Fatalf("denied at %v of %+v, and granted %v before RetryAt: %s", w.clock.now(), before, early, show(res))
		}
		return
	}
	w.did["granted"]++
	same, err := w.plain.RateLimit(t.Context(), one...)
	if err != nil {
		t.Fatal(err)
	}
	rounding := time.Millisecond
	if bounded {
		rounding += w.slack()
	}
	if !same.OK && same.RetryAfter() > rounding && math.Abs(left) > slack { // of a window, what rounding lacks comes with the next one
		t.Fatalf("granted of %+v, and one balance would not have: %s", before, show(same))
	}
	if !same.OK { // then keep them together
		one[0] = one[0].OrReserve()
		if bounded {
			one[0] = one[0].Within(century)
		}
		if same, err = w.plain.RateLimit(t.Context(), one...); err != nil || !same.OK {
			w.did["parted"]++
			return
		}
	}
	if !res.RunAt.IsZero() {
		w.did["ahead"]++
	}
	if w.level && !same.RunAt.IsZero() && !w.sameRun(res, same, count) {
		t.Fatalf("in line until %v, and with one balance until %v", res.RunAt, same.RunAt)
	}
	w.kept = append(w.kept, bothGranted{res, same, w.level})
}

// slack allows for rounding: the rates of shards are not alike to the last bit, so that one may be out of a debt before its
// time, by a microsecond; and a debt of fractions may miss the window that would repay it.
func (w *twins) slack() time.Duration {
	n := numbersOf(w.rule)
	if n.windowed && n.rate*2 != math.Trunc(n.rate*2) {
		return 2*time.Microsecond + n.period
	}
	return 2 * time.Microsecond
}

// edge is slack for balances of these values: a debt that is one of whole windows may by rounding be that of one more.
func (w *twins) edge(values ...float64) time.Duration {
	most, n := w.slack(), numbersOf(w.rule)
	for _, v := range values {
		if windows := v / n.rate; n.windowed && math.Abs(windows-math.Round(windows)) < slack {
			most = max(most, n.period+2*time.Microsecond)
		}
	}
	return most
}

// sameRun tells whether two calls of that count run at the same time. A debt of next to nothing may be none.
func (w *twins) sameRun(a, b ratelimit.Result, count float64) bool {
	at := func(r ratelimit.Result) time.Time {
		if r.RunAt.IsZero() {
			return r.At
		}
		return r.RunAt
	}
	left := a.Outcomes[0].Value
	return at(a).Sub(at(b)).Abs() <= w.edge(left, left+count) // on credit it is without its own
}

// drain makes both balances alike: all that is there is taken from each, and then time stands still.
func (w *twins) drain(t *rapid.T) {
	w.did["drain"]++
	for _, r := range []ratelimit.Request{w.many(), w.one()} {
		v := verbs(w.plain)
		if r == w.many() {
			v = w.anyone(t)
		}
		if left := w.value(t, v, r); left.Value > slack && left.PausedUntil.IsZero() {
			if res, err := v.RateLimit(t.Context(), r.Count(left.Value*(1-1e-12))); err != nil || !res.OK { // but for rounding
				t.Fatalf("all that is there: %s, %v, of %+v", show(res), err, left)
			}
		}
	}
	many, one := w.value(t, w.plain, w.many()), w.value(t, w.plain, w.one())
	w.level = math.Abs(many.Value-one.Value) <= slack && one.Value <= slack
}

// end gives back or settles what was taken, both alike.
func (w *twins) end(t *rapid.T) {
	if len(w.kept) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.kept)-1).Draw(t, "which")
	p := w.kept[i]
	w.kept = slices.Delete(slices.Clone(w.kept), i, i+1)
	v, n := w.anyone(t), p.alone.Reservation().Takes[0].Count
	how := rapid.SampledFrom([]string{"give back", "release", "settle", "exceed", "exceed"}).Draw(t, "how")
	used := n * rapid.SampledFrom([]float64{0, 0.3, 0.9}).Draw(t, "used")
	if how == "exceed" {
		used = n + rapid.SampledFrom([]float64{0, 0.5, 1, 4, 9}).Draw(t, "excess")
	}
	w.did[how]++
	var errs [2]error
	switch how {
	case "give back":
		errs = [2]error{v.GiveBack(t.Context(), p.sharded), w.plain.GiveBack(t.Context(), p.alone)}
	case "release":
		_, errs[0] = v.Release(t.Context(), p.sharded.Reservation())
		_, errs[1] = w.plain.Release(t.Context(), p.alone.Reservation())
	default:
		_, errs[0] = v.Settle(t.Context(), p.sharded.Reservation(), w.many().Count(used))
		_, errs[1] = w.plain.Settle(t.Context(), p.alone.Reservation(), w.one().Count(used))
	}
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(how, err)
	}
}

// relay changes the number of shards, in either direction, and mints and loses nothing.
func (w *twins) relay(t *rapid.T) {
	n := rapid.SampledFrom([]int{1, 2, 3, 4, 7, 16, 40}).Draw(t, "shards")
	w.did["reshard"]++
	before := w.value(t, w.plain, w.many())
	v := rapid.SampledFrom(w.renewers).Draw(t, "process")
	if err := v.do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return v.l.Reshard(ctx, tx, n, w.many())
	}); err != nil {
		t.Fatal(err)
	}
	if n < w.n && rapid.Bool().Draw(t, "deployed") { // or who defines more shards makes more again
		w.define(n)
	}
	if after := w.value(t, w.anyone(t), w.many()); math.Abs(after.Value-before.Value) > slack || !after.PausedUntil.Equal(before.PausedUntil) {
		t.Fatalf("a change to %d shards has made %+v of %+v", n, after, before)
	}
}

func (w *twins) define(n int) {
	w.n = n
	w.sharded = ratelimit.MustDefine(w.sharded.Name(), w.rule, ratelimit.Shards(n))
}

// each does the same to both.
func (w *twins) each(t *rapid.T, name string, do func(v verbs, r ratelimit.Request) error) {
	w.did[name]++
	if err := errors.Join(do(w.anyone(t), w.many()), do(w.plain, w.one())); err != nil {
		t.Fatal(name, err)
	}
}

// A limit with shards grants nothing that one balance would not, says exactly when it will grant, and loses nothing but what
// a full shard does not gain.
func TestALimitWithShardsIsNeverMoreThanOneBalance(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	did := map[string]int{}
	for round := range rounds(t, 1) {
		rapid.Check(t, func(t *rapid.T) {
			if _, err := pool.Exec(t.Context(), `WITH gone AS (DELETE FROM weir_settled) DELETE FROM weir_balance`); err != nil {
				t.Fatal(err)
			}
			w := &twins{pool: pool, clock: newClock(), did: did}
			for range 2 {
				for _, way := range ways {
					l, err := ratelimit.New(ratelimit.Config{Portable: way.portable, Clock: w.clock.now})
					if err != nil {
						t.Fatal(err)
					}
					v := verbs(sqlVerbs{l, db})
					if way.name != "DatabaseSQL" {
						v = way.verbs(nil, l, pool)
					}
					w.processes = append(w.processes, v)
					if x, ok := v.(txVerbs); ok {
						w.renewers = append(w.renewers, x)
					}
				}
			}
			w.plain = w.renewers[0]
			w.rule = rapid.OneOf(exactRule(), oddRule()).Filter(func(r ratelimit.Rule) bool {
				return numbersOf(r).capacity >= 0.5 && numbersOf(r).capacity < 1e4
			}).Draw(t, "rule")
			if window, ok := w.rule.(ratelimit.FixedWindow); ok { // the phase depends on the name
				window.Start = w.clock.now().Add(micros(rapid.Int64Range(-1e12, 1e12).Draw(t, "start")))
				w.rule = window
			}
			name := fmt.Sprint("twin", round)
			w.sharded, w.alone = ratelimit.MustDefine(name, w.rule), ratelimit.MustDefine(name+"alone", w.rule)
			w.define(rapid.IntRange(2, 40).Draw(t, "n"))
			w.other = ratelimit.MustDefine(name+"other", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second})
			if rapid.Bool().Draw(t, "other sharded") {
				w.other = ratelimit.MustDefine(name+"other", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second}, ratelimit.Shards(3))
			}
			period := numbersOf(w.rule).period
			t.Repeat(map[string]func(*rapid.T){
				"take": w.take, "take again": w.take, "take more": w.take, "end": w.end, "reshard": w.relay, "drain": w.drain,
				"tick": func(t *rapid.T) {
					w.level = false // what a full shard does not gain
					w.clock.add(rapid.SampledFrom([]time.Duration{1, 999 * time.Microsecond, period / 16, period / 5, period, 3 * period}).
						Draw(t, "by").Truncate(time.Microsecond))
				},
				"reset": func(t *rapid.T) {
					w.each(t, "reset", func(v verbs, r ratelimit.Request) error { return v.ResetRateLimit(t.Context(), r) })
					// It makes alike what may have owed more with shards, and what a take has owed would still be given back.
					w.kept = slices.DeleteFunc(slices.Clone(w.kept), func(p bothGranted) bool { return !p.level })
				},
				"pause": func(t *rapid.T) {
					d := rapid.SampledFrom([]time.Duration{time.Millisecond, period/3 + 1, period, 5 * period / 2}).Draw(t, "duration")
					w.each(t, "pause", func(v verbs, r ratelimit.Request) error { return v.Pause(t.Context(), d, r) })
				},
				"resume": func(t *rapid.T) {
					w.each(t, "resume", func(v verbs, r ratelimit.Request) error { return v.Resume(t.Context(), r) })
				},
				"": w.compare,
			})
		})
	}
	t.Logf("%v", did)
}
