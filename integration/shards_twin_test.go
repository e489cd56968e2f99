package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// tryAt makes the call at another time, in a transaction that is rolled back.
func (p *promises) tryAt(t *rapid.T, at time.Time, r ...ratelimit.Request) bool {
	now := p.clock.Now()
	p.clock.Set(at)
	defer p.clock.Set(now)
	ok := false
	v := rapid.SampledFrom(p.inTx).Draw(t, "process")
	err := v.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		res, err := v.Limiter.RateLimit(ctx, tx, r...)
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

func (p *promises) take(t *rapid.T) {
	n := p.numbers
	count := rapid.SampledFrom([]float64{0, 0.25, 0.5, 1, 1, 2, 3, n.Capacity / 3, n.Capacity * 0.7,
		n.Capacity}).Draw(t, "count")
	count = min(count, n.Capacity)
	ahead := anyAhead(t, n.Period)
	leave := 0.0
	if rapid.IntRange(0, 5).Draw(t, "leaving") == 0 {
		leave = (n.Capacity - count) * rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "leave") * (1 - 1e-9)
		ahead = func(r ratelimit.Request) ratelimit.Request { return r.Leave(leave) }
	}
	r := ahead(p.r().Count(count))
	requests := []ratelimit.Request{r}
	if rapid.IntRange(0, 4).Draw(t, "several") == 0 { // the other has always enough
		requests = append(requests, p.other.For("k"))
	}
	v := p.anyone(t)
	checked, err := p.anyone(t).CheckRateLimit(t.Context(), requests...)
	if err != nil {
		t.Fatal(err)
	}
	now, before := p.clock.Now(), p.rows(t)
	res, err := v.RateLimit(t.Context(), requests...)
	if err != nil {
		t.Fatal(err)
	}
	after := p.rows(t)
	left := before.there(now) - count - leave
	rounds := math.Abs(left) <= slack || len(before) != len(after) // with other shares, too
	taken := 0.0
	if res.OK {
		taken = count
	}
	if gone := before.at(now) - after.at(now); len(before) == len(after) && math.Abs(gone-taken) > slack {
		t.Fatalf("%v were taken, and the rows have %v less: %+v, then %+v", taken, gone, before, after)
	}
	// A transaction that the caller began cannot begin again, and takes only from rows behind one
	// that it tried in vain.
	if _, raw := v.(rig.SQLVerbs); raw && checked.OK && !res.OK && res.RetryAt.Sub(now) <= 100*time.Millisecond {
		p.did["denied for a while"]++
		return
	}
	if !rounds && (res.OK != checked.OK || res.RetryAt.Sub(checked.RetryAt).Abs() > p.edge(before, count)) {
		t.Fatalf("checked %s\nbut then %s\nof %+v\nleaving %+v", rig.Show(checked), rig.Show(res), before, after)
	}
	if !res.OK {
		p.did["denied"]++
		if left > slack && !before.paused(now) {
			t.Fatalf("denied, though the shards together have it: %s of %+v", rig.Show(res), before)
		}
		if !p.tryAt(t, res.RetryAt, requests...) {
			t.Fatalf("denied at %v of %+v, and at RetryAt: %s", now, before, rig.Show(res))
		}
		if early := p.edge(before, count); p.tryAt(t, res.RetryAt.Add(-early), requests...) {
			t.Fatalf("denied at %v of %+v, and granted %v before RetryAt: %s", now, before, early, rig.Show(res))
		}
		return
	}
	p.did["granted"]++
	w := &grantedWork{res: res, count: count, start: res.At}
	if strings.Contains(r.String(), "OnCredit") {
		p.largest, p.beyond = max(p.largest, count), true
	}
	if !res.RunAt.IsZero() {
		p.did["ahead"]++
		if w.start = (time.Time{}); p.due(t, w).Sub(res.RunAt).Abs() > time.Microsecond {
			t.Fatalf("told %v, and its takes may run at %v", res.RunAt, p.due(t, w))
		}
	} else if left < -slack && !strings.Contains(r.String(), "OnCredit") {
		t.Fatalf("granted at once, though the shards together do not have it: %s of %+v", rig.Show(res), before)
	}
	if len(w.res.Reservation().Takes) > 1 {
		p.did["parts"]++
	}
	p.all = append(p.all, w)
}

// edge allows for rounding: the rates of shards are not alike to the last bit, so that one may be
// out of a debt before its time, by a microsecond; and a debt of whole windows may by rounding be
// that of one more.
func (p *promises) edge(rows openRows, count float64) time.Duration {
	most, n := 2*time.Microsecond, p.numbers
	if n.Windowed && n.Rate*2 != math.Trunc(n.Rate*2) {
		return most + n.Period
	}
	now := p.clock.Now()
	for _, v := range []float64{rows.at(now), rows.at(now) - count, rows.there(now) - count} {
		if windows := v / n.Rate; n.Windowed && math.Abs(windows-math.Round(windows)) < slack {
			return most + n.Period
		}
	}
	return most
}

// end gives back or settles what was taken: all of it goes to rows that have room, and nothing
// more.
func (p *promises) end(t *rapid.T) {
	open := slices.DeleteFunc(slices.Clone(p.all), func(w *grantedWork) bool { return w.ended })
	if len(open) == 0 {
		return
	}
	w := rapid.SampledFrom(open).Draw(t, "which")
	v, now, before := p.anyone(t), p.clock.Now(), p.rows(t)
	how := rapid.SampledFrom([]string{"give back", "release", "settle", "exceed"}).Draw(t, "how")
	if w.start.IsZero() || w.start.After(now) { // only what has run is settled
		how = rapid.SampledFrom([]string{"give back", "release"}).Draw(t, "how instead")
	}
	was, due := w.count, p.due(t, w)
	var err error
	switch how {
	case "give back":
		w.count, err = 0, v.GiveBack(t.Context(), w.res)
	case "release":
		w.count = 0
		_, err = v.Release(t.Context(), w.res.Reservation())
	case "settle":
		w.count *= rapid.SampledFrom([]float64{0, 0.3, 0.9}).Draw(t, "used")
		_, err = v.Settle(t.Context(), w.res.Reservation(), p.r().Count(w.count))
	default:
		excess := rapid.SampledFrom([]float64{0.5, 1, 4, 9}).Draw(t, "excess")
		_, err = v.Settle(t.Context(), w.res.Reservation(), p.r().Count(was+excess))
		p.beyond = true
		if gone := before.at(now) - p.rows(t).at(now); err == nil && math.Abs(gone-excess) > slack {
			t.Fatalf("%v more were used, and the rows have %v less: %+v, then %+v", excess, gone, before, p.rows(t))
		}
	}
	if err != nil {
		t.Fatal(how, err)
	}
	w.ended = true
	p.did[how]++
	if how == "exceed" {
		return
	}
	after, at := p.rows(t), now // in a pause, its end: then those start who have moved up
	for i := range after {
		if after[i].pausedUntil.After(at) {
			at = after[i].pausedUntil
		}
	}
	p.gifts = append(p.gifts, gift{at, due, was - w.count,
		slices.DeleteFunc(slices.Clone(p.all), func(w *grantedWork) bool {
			return w.ended || !w.start.IsZero()
		})})
	room := !slices.ContainsFunc(after, func(r openRow) bool { return r.at(now) > r.capacity-slack })
	come, unused := after.at(now)-before.at(now), was-w.count
	if come > unused+slack || come < -slack || !p.numbers.Windowed && room && come < unused-slack {
		t.Fatalf("%v of %v came back, and the rows have %v more: %+v, then %+v", unused, was, come, before, after)
	}
}

// relay changes the number of shards, in either direction. It mints and loses nothing, and keeps
// the times that were told.
func (p *promises) relay(t *rapid.T) {
	n := rapid.SampledFrom([]int{1, 2, 3, 4, 5, 7, 10, 16, 40}).Draw(t, "shards")
	p.did["reshard"]++
	now, before := p.clock.Now(), p.rows(t)
	told := make([]time.Time, len(p.all))
	for i, w := range p.all {
		told[i] = p.due(t, w)
	}
	v := rapid.SampledFrom(p.inTx).Draw(t, "process")
	err := v.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return v.Limiter.Reshard(ctx, tx, n, p.r())
	})
	if p.most(n) < n {
		if !errors.Is(err, ratelimit.ErrInvalid) {
			t.Fatalf("%d shards of %+v: %v", n, p.rule, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	after := p.rows(t)
	if len(after) != n && len(before) != 1 { // one that was never used stays as it is
		t.Fatalf("%d shards, want %d", len(after), n)
	}
	// In a row that is paused until the lines that it is made of have ended there is already what
	// flows until then.
	until := now
	for i := range after {
		if after[i].pausedUntil.After(until) {
			until = after[i].pausedUntil
		}
	}
	p.merged = until
	lost, minted := before.at(now)-after.at(now), after.at(now)-before.at(until)
	if lost > slack || minted > slack {
		t.Fatalf("a change to %d shards has made %+v of %+v: %v lost, %v minted", n, after, before, lost, minted)
	}
	for i, w := range p.all {
		if at := p.due(t, w); at.Sub(told[i]).Abs() > time.Microsecond &&
			(at.After(now) || told[i].After(now)) && !w.ended {
			t.Fatalf("after a change to %d shards work starts at %v, which was told %v", n, at, told[i])
		}
	}
	if rapid.Bool().Draw(t, "deployed") { // or who defines more shards makes more again
		p.limit = ratelimit.MustDefine(p.limit.Name(), p.rule, ratelimit.Shards(n))
	}
}

// operate does what an operator does, to all rows.
func (p *promises) operate(t *rapid.T) {
	how := rapid.SampledFrom([]string{"pause", "pause", "resume", "reset"}).Draw(t, "how")
	if how == "resume" && p.clock.Now().Before(p.merged) {
		return // it would end a pause that keeps what is merged from starting too early
	}
	p.did[how]++
	v, period := p.anyone(t), p.numbers.Period
	var err error
	switch how {
	case "pause":
		d := rapid.SampledFrom([]time.Duration{time.Millisecond, period/3 + 1, period,
			5 * period / 2}).Draw(t, "duration")
		err = v.Pause(t.Context(), d, p.r())
	case "resume":
		err = v.Resume(t.Context(), p.r())
	default:
		err = v.ResetRateLimit(t.Context(), p.r())
		p.all, p.gifts = nil, nil // a reset is a gift, to which nothing that was is compared
	}
	if err != nil {
		t.Fatal(how, err)
	}
}

// What a limit with shards promises holds whatever one caller after the other does with it: no more
// starts in any time than the limit allows, nobody is denied what the shards together have, RetryAt
// is exact, and no token is lost or minted.
func TestALimitWithShardsKeepsItsPromises(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	did := map[string]int{}
	for round := range rig.Rounds(t, 1) {
		rapid.Check(t, func(t *rapid.T) {
			if _, err := pool.Exec(t.Context(),
				`WITH gone AS (DELETE FROM weir_settled) DELETE FROM weir_balance`); err != nil {
				t.Fatal(err)
			}
			p := &promises{pool: pool, clock: rig.Clock(), did: did, debt: math.Inf(1)}
			for range 2 {
				for _, way := range rig.Ways {
					l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(),
						Portable: way.Portable, Clock: p.clock.Now})
					if err != nil {
						t.Fatal(err)
					}
					var v rig.Verbs
					switch way.Name {
					case "DatabaseSQL", "InSQLTx":
						v = rig.SQL(l, db, way.Name == "InSQLTx")
					default:
						v = way.Verbs(nil, l, pool)
					}
					p.processes = append(p.processes, v)
					if x, ok := v.(rig.TxVerbs); ok {
						p.inTx = append(p.inTx, x)
					}
				}
			}
			p.rule = rapid.OneOf(rig.ExactRule(), rig.OddRule()).Filter(func(r ratelimit.Rule) bool {
				p.numbers = rig.NumbersOf(r)
				return p.numbers.Capacity < 1e4 && p.most(40) > 1
			}).Draw(t, "rule")
			p.numbers = rig.NumbersOf(p.rule)
			var reserved *float64
			switch rule := p.rule.(type) {
			case ratelimit.FixedWindow: // the phase depends on the name
				rule.Start = p.clock.Now().Add(rig.Micros(rapid.Int64Range(-1e12, 1e12).Draw(t, "start")))
				p.rule, reserved = rule, rule.MaxReserved
			case ratelimit.TokenBucket:
				reserved = rule.MaxReserved
			}
			if reserved != nil {
				p.debt = *reserved
			}
			name := fmt.Sprint("promises", round)
			p.limit = ratelimit.MustDefine(name, p.rule, ratelimit.Shards(rapid.IntRange(2, 40).Draw(t, "n")))
			p.other = ratelimit.MustDefine(name+"other", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second})
			if rapid.Bool().Draw(t, "other sharded") {
				p.other = ratelimit.MustDefine(name+"other",
					ratelimit.TokenBucket{Rate: 1e6, Period: time.Second}, ratelimit.Shards(3))
			}
			t.Repeat(map[string]func(*rapid.T){
				"take": p.take, "take again": p.take, "take more": p.take, "end": p.end,
				"reshard": p.relay, "tick": p.tick, "tick on": p.tick,
				"operate": p.operate,
				"":        p.compare,
			})
		})
	}
	t.Logf("%v", did)
}
