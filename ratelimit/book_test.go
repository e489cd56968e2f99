package ratelimit

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/internal/test/pgtest"
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
	l.books.Look(c[0].Place, w, nil)
	return l, c, w
}

// Between a look and the choice that follows another caller of the process may have emptied the
// shard that was seen to have enough, or have learnt of another number of shards. Then the take
// goes by what was seen.
func TestTheBooksMayChangeBetweenALookAndTheChoice(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Limiter, *call){
		"nothing": func(*Limiter, *call) {},
		"taken": func(l *Limiter, c *call) {
			l.books.Took(where.Row{Place: c.Place, Shard: four.Row(3)}, algebra.Balance{Exists: true, TS: noon}, 1)
		},
		"forgotten": func(l *Limiter, c *call) { l.books.Forget(c.Place) },
		"more shards": func(l *Limiter, c *call) {
			l.books.Look(c.Place, &spread.Whole{Layout: shard.Layout{Shards: 8}, Rows: make([]algebra.Balance, 8), At: noon}, nil)
		},
	} {
		l, c, w := looked(t)
		change(l, &c[0])
		aims := make([]aim, 1)
		l.aim(executor{}, c, aims, []*spread.Whole{w}, &holds{}, false)
		l.send(&aims[0])
		if sent := aims[0].sent; len(sent) != 1 || sent[0].c.Shard != four.Row(3) {
			t.Errorf("%s: aimed at %+v", name, aims[0])
		}
	}
}

// A take that was denied as it would wait for too long, or in a pause, has locked its shard.
func TestADeniedTakeHoldsItsShard(t *testing.T) {
	t.Parallel()
	l, c, w := looked(t)
	waits := resolved(t, MustDefine("plums", TokenBucket{Rate: 10, Period: time.Second, Capacity: Tokens(40)}, Shards(4)).
		Global().Count(5).Within(time.Second))
	for name, tc := range map[string]struct {
		calls []call
		row   algebra.Balance
	}{
		"Within": {waits, algebra.Balance{Exists: true, TS: noon, Value: -30}},
		"paused": {c, algebra.Balance{Exists: true, TS: noon, Value: 10, PausedUntil: noon + 1e9}},
	} {
		aims := []aim{{c: &tc.calls[0], layout: four, from: []int{2}, level: -60}}
		l.send(&aims[0])
		w.Rows[2] = tc.row
		var held holds
		held.add(aims, []*spread.Whole{w}, 0)
		if held.last.Shard != four.Row(2) {
			t.Errorf("%s: %+v", name, held)
		}
	}
}

// A call leaves out a shard that it has lost until the shard changes.
func TestALostShardIsLeftOutUntilItChanges(t *testing.T) {
	t.Parallel()
	l, c, w := looked(t)
	aims := make([]aim, 1)
	aimed := func(w *spread.Whole) bool {
		return l.aim(executor{}, c, aims, []*spread.Whole{w}, &holds{}, false)
	}
	if !aimed(w) {
		t.Fatalf("%+v, want the last shard", aims[0])
	}
	l.send(&aims[0])
	l.lose(&aims[0], w)
	if aimed(w) {
		t.Errorf("aimed at %v of %v, which others hold", aims[0].from, w.Rows)
	}
	less := &spread.Whole{Layout: four, Rows: slices.Clone(w.Rows), At: noon}
	less.Rows[3].Value = 6
	if !aimed(less) || !slices.Equal(aims[0].from, []int{3}) {
		t.Errorf("aimed at %v of %v, want the last", aims[0].from, less.Rows)
	}
}

// On Citus, a shard whose node cannot be reached is left out for a second, as if another
// transaction held it. Otherwise it would be the first choice, because nobody takes from it.
func TestAShardWhoseNodeIsDownIsLeftOut(t *testing.T) {
	t.Parallel()
	const node = "connection to the remote node weir@10.0.0.2:5432 failed with the following error: "
	for message, out := range map[string]bool{
		node + "Connection refused\n\tIs the server running on that host?": true,
		// perhaps only this call has lost its connection
		node + "connection not open": false,
	} {
		synctest.Test(t, func(t *testing.T) { // whose clock stands still
			l, c, w := looked(t)
			aims := make([]aim, 1)
			l.aim(executor{}, c, aims, []*spread.Whole{w}, &holds{}, false)
			l.send(&aims[0])
			l.arrive(executor{}, aims[0].sent, &pgconn.PgError{Code: "08006", Message: message})
			if free := l.books.Free(c[0].Place, four, 0)(3); free == out {
				t.Errorf("%s: other calls may take from the shard: %v", message, free)
			}
			time.Sleep(time.Second)
			if !l.books.Free(c[0].Place, four, 0)(3) {
				t.Errorf("%s: a second later the shard is still left out", message)
			}
		})
	}
}

// A call that gets none of its parts does not gather again from other shards, unless it may wait or
// there is no lock for gathering.
func TestACallThatGetsNoPartDoesNotGatherAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		found, waits, portable, again bool
	}{
		"none":           {again: false},
		"one":            {found: true, again: true},
		"it may wait":    {waits: true, again: true},
		"it is portable": {portable: true, again: true},
	} {
		l, c, w := looked(t)
		l.cfg.Portable = tc.portable
		if tc.waits {
			c = resolved(t, plums.Global().Count(5).OrReserve())
			c[0].Most = 2 // or one shard would reserve all of it
		}
		for k := range w.Rows {
			w.Rows[k].Value = 3
		}
		aims := make([]aim, 1)
		seen := []*spread.Whole{w}
		if !l.aim(executor{}, c, aims, seen, &holds{}, false) || len(aims[0].plan.Parts) != 2 {
			t.Fatalf("%s: %+v, want two parts", name, aims[0].plan)
		}
		l.send(&aims[0])
		aims[0].sent[0].found = tc.found
		l.lose(&aims[0], w)
		if again := l.aim(executor{}, c, aims, seen, &holds{}, false); again != tc.again {
			t.Errorf("%s: gathers again: %v, want %v", name, again, tc.again)
		}
	}
}

// What an attempt has made may roll back, so what it sees of that is not noted; what others see is.
func TestWhatMayRollBackIsNotKnownToOthers(t *testing.T) {
	t.Parallel()
	l, c, w := looked(t)
	own := executor{attempt: &attempt{l: l}}
	l.making(&c[0], own)
	if l.remembered(&c[0], w, own); l.books.Has(c[0].Place) {
		t.Error("what an attempt made may roll back, and others know of it")
	}
	if l.remembered(&c[0], w, executor{attempt: &attempt{l: l}}); !l.books.Has(c[0].Place) {
		t.Error("what another attempt has seen is not known")
	}
}

// A call that loses one of its parts rolls back, and reads the shards again: the books then have what
// it has read, and not what the other parts had left.
func TestWhatACallRolledBackIsNotRemembered(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it holds a lock of one server")
	const n = 8
	pool := pgtest.Pool(t)
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	limit := MustDefine("rolledBack", TokenBucket{Rate: 10 * n, Period: 10_000 * time.Hour}, Shards(n)).Global()
	for range 2 { // the first makes the shards, and the second learns of them
		if res, err := l.Autocommit(pool).RateLimit(t.Context(), limit.Count(6)); err != nil || !res.OK {
			t.Fatal(res.OK, err)
		}
	}
	c := resolved(t, limit.Count(12))[0]
	layout, known := l.books.Layout(c.Place)
	if !known || layout.Shards != n {
		t.Fatal(layout, known)
	}
	set := func(value float64, shards ...int) {
		for _, i := range shards {
			if _, err := pool.Exec(t.Context(), `UPDATE weir_balance SET value = $1 WHERE name = 'rolledBack' AND shard = $2`,
				value, layout.Row(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	set(-50, 3, 4, 5, 6, 7)
	set(-10, 0, 1, 2)
	if _, err := l.Autocommit(pool).CheckRateLimit(t.Context(), limit.OrReserve()); err != nil {
		t.Fatal(err)
	}
	set(-1, 3, 4, 5) // another process has given back
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_xact_lock(x'57656972'::integer,
		int4xor($1::integer, hashoid('weir_balance'::regclass::oid)))`, c.Busy(layout.Row(1))); err != nil {
		t.Fatal(err)
	}
	var res Result
	if err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		// at first of the first three shards
		res, err = l.RateLimit(ctx, tx, limit.Count(12).Within(20_000*time.Hour))
		return err
	}); err != nil || !res.OK {
		t.Fatal(res.OK, err)
	}
	for _, take := range res.Reservation().Takes {
		if _, i := shard.Address(take.row); i < 3 {
			t.Errorf("it has taken from shard %d, which stood worse", i)
		}
	}
	for i, b := range l.books.Known(c.Place, nil).Rows[:3] {
		if math.Abs(b.Value+10) > 1e-3 {
			t.Errorf("shard %d has -10, and is remembered with %v", i, b.Value)
		}
	}
}

// A take that a shard denied has locked it, though the tokens that it wanted have come by the time
// of the look. One for which they were there was not denied: another transaction held the shard.
func TestAShardThatFillsAfterItDeniedIsLocked(t *testing.T) {
	t.Parallel()
	limit := MustDefine("fills", TokenBucket{Rate: 2000, Period: time.Second, Capacity: Tokens(200)}, Shards(2))
	calls, err := resolveAll([]Request{limit.For("k").Count(10)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	two := shard.Layout{Shards: 2}
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	a := aim{c: &calls[0], layout: two, from: []int{1, 0}}
	a.sent = []*statement{l.takeShard(&a)}
	row := algebra.Balance{Exists: true, Value: 0, TS: noon, PausedUntil: algebra.Open}
	empty := algebra.Balance{Exists: true, Value: -100, TS: noon, PausedUntil: algebra.Open}
	// A shard gets a token a millisecond: the second one has ten of them after ten.
	w := &spread.Whole{Layout: two, Rows: []algebra.Balance{empty, row}, At: noon + 12_000}
	for before, want := range map[time.Duration]int32{time.Millisecond: two.Row(0), 5 * time.Millisecond: two.Row(1)} {
		var h holds
		if h.add([]aim{a}, []*spread.Whole{w}, before); h.last.Shard != want {
			t.Errorf("sent %v before: the last row that is locked is %d, want %d", before, h.last.Shard, want)
		}
	}
}

// A call of limits without shards that took nothing is not granted, although each look found enough
// tokens.
func TestACallThatTookNothingIsNotGranted(t *testing.T) {
	t.Parallel()
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	full := &spread.Whole{Layout: shard.Single, Rows: make([]algebra.Balance, 1), At: noon}
	aims := []aim{{layout: shard.Single}, {layout: shard.Single}}
	calls := resolved(t, pears.For("x"), apples.For("x"))
	for n := 1; n <= 2; n++ {
		res, err := l.takenAgain(t.Context(), aims[:n], []*spread.Whole{full, full}, calls[:n])
		if !errors.Is(err, errUndecided) {
			t.Errorf("%d limits: %+v, %v", n, res, err)
		}
	}
}

// What reads a limit reads its only row, unless it should have shards or is known to have some: a
// transaction then depends on no more than that row.
func TestALimitWithoutShardsIsReadByItsRow(t *testing.T) {
	t.Parallel()
	l, c, _ := looked(t)
	unshared := MustDefine("plums", TokenBucket{Rate: 40, Period: time.Hour})
	shared := MustDefine("dates", TokenBucket{Rate: 40, Period: time.Hour}, Shards(4))
	for name, tc := range map[string]struct {
		call call
		want string
	}{
		"none":                    {resolved(t, apples.For("x"))[0], l.sql.Look},
		"should have some":        {resolved(t, shared.Global())[0], l.sql.LookShards},
		"is known to have some":   {resolved(t, unshared.Global())[0], l.sql.LookShards},
		"has some of another key": {resolved(t, unshared.For("x"))[0], l.sql.Look},
		"both":                    {c[0], l.sql.LookShards},
	} {
		if s := l.looksAt([]call{tc.call})[0]; s.sql != tc.want {
			t.Errorf("%s: it is read with %s", name, s.sql)
		}
	}
}

// A call looks before it queues for a row that is short of tokens. Takes from shards do not queue.
func TestALimitWithShardsIsNotScarce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // as a row is contended for a while only
		l, c, _ := looked(t)
		x := executor{lazy: &lazyTx{}, attempt: &attempt{l: l}}
		row := resolved(t, apples.For("x"))
		for _, calls := range [][]call{c, row} {
			l.contended.Note(calls[0].Row)
			l.noted(&calls[0], &algebra.Verdict{At: noon, RetryAt: noon + time.Hour.Microseconds(),
				After: algebra.Balance{PausedUntil: algebra.Open}})
		}
		if l.scarce(x, c) {
			t.Error("a limit with shards is")
		}
		if !l.scarce(x, row) || !l.scarce(x, append(row, c...)) {
			t.Error("a limit without shards is not")
		}
	})
}

// A call that has lost its tokens in a limit with shards to others takes nothing from a limit
// without shards either: its Outcome has the balance as it stays, and no RunAt.
func TestACallThatLostAShardTakesNothingElsewhere(t *testing.T) {
	t.Parallel()
	reserves := MustDefine("reserves", TokenBucket{Rate: 10, Period: time.Minute, MaxReserved: Tokens(10)})
	l, _, seen := looked(t)
	calls := resolved(t, plums.Global().Count(5), reserves.For("x").Count(5).OrReserve())
	owes := &spread.Whole{Layout: shard.Single, Rows: []algebra.Balance{{Exists: true, TS: noon, Value: 2,
		PausedUntil: algebra.Open}}, At: noon}
	aims := []aim{{c: &calls[0], layout: four}, {c: &calls[1], layout: shard.Single}}
	res, err := l.takenAgain(t.Context(), aims, []*spread.Whole{seen, owes}, calls)
	if err != nil || res.OK || res.Limit != "plums" || !res.RunAt.IsZero() {
		t.Fatalf("%+v, %v; want it denied by plums", res, err)
	}
	if o := res.Outcomes[1]; !o.OK || o.Value != 2 || !o.RunAt.IsZero() || !o.PacedAt.IsZero() {
		t.Errorf("%+v, want a value of 2 and no RunAt", o)
	}
	if o := res.Outcomes[0]; o.OK || o.Value != 10 || o.RetryAt.IsZero() {
		t.Errorf("%+v, want a denial with a value of 10", o)
	}
}

// A call that has lost its tokens to others is denied though there are tokens. The next one asks the
// database again.
func TestADenialForLostTokensAnswersNoOtherCall(t *testing.T) {
	t.Parallel()
	l, _, seen := looked(t)
	l.cfg.RememberDenials = true
	calls := resolved(t, plums.Global().Count(5))
	l.watch(calls)
	aims := []aim{{c: &calls[0], layout: four}}
	if res, err := l.takenAgain(t.Context(), aims, []*spread.Whole{seen}, calls); err != nil || res.OK {
		t.Fatalf("%+v, %v; want a denial", res, err)
	}
	if res, ok := l.recall(resolved(t, plums.Global().Count(5))); ok {
		t.Errorf("the next call is answered from memory: %+v", res)
	}
}
