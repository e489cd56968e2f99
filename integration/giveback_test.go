package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

var (
	window = ratelimit.FixedWindow{Rate: 10, Period: time.Minute, Start: rig.Noon}
)

type outcome struct {
	res ratelimit.Result
	err error
}

func first(res ratelimit.Result, err error) outcome { return outcome{res, err} }

func takeOK(t *testing.T, o outcome) ratelimit.Result {
	t.Helper()
	res, err := o.res, o.err
	if err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	return res
}

func takeUp(t *testing.T, a *ratelimit.Autocommit, r ratelimit.Request) (n int) {
	t.Helper()
	for range 100 {
		res, err := a.RateLimit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if !res.OK {
			return n
		}
		n++
	}
	return n
}

// What was taken from a window does not go into a later one, whatever the clock says.
func TestAClockSetBackMintsNothingByGivingBack(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), weirtest.NewClock(rig.Noon)
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	a := l.Autocommit(pool)
	k := ratelimit.MustDefine("back", window).For("k")
	res := takeOK(t, first(a.RateLimit(t.Context(), k.Count(5))))
	c.Set(rig.Noon.Add(time.Minute))
	takeOK(t, first(a.RateLimit(t.Context(), k.Count(5))))
	c.Set(rig.Noon)
	if err := a.GiveBack(t.Context(), res); err != nil {
		t.Fatal(err)
	}
	c.Set(rig.Noon.Add(time.Minute))
	if n := 5 + takeUp(t, a, k); n > 10 {
		t.Errorf("%d tokens of one window of 10", n)
	}
}

// The time of a take is that of its own row, not the latest of the call.
func TestEachLimitIsGivenBackToItsOwnWindow(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), weirtest.NewClock(rig.Noon)
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	a := l.Autocommit(pool)
	wk := ratelimit.MustDefine("a", window).For("k")
	bk := ratelimit.MustDefine("b", ratelimit.TokenBucket{Rate: 100, Period: time.Minute}).For("k")
	// b's row was last taken from by someone whose clock reading was later (a take that waited for
	// the row sees this)
	c.Set(rig.Noon.Add(61 * time.Second))
	takeOK(t, first(a.RateLimit(t.Context(), bk)))
	c.Set(rig.Noon.Add(59 * time.Second))
	res := takeOK(t, first(a.RateLimit(t.Context(), wk.Count(5), bk)))
	c.Set(rig.Noon.Add(61 * time.Second))
	takeOK(t, first(a.RateLimit(t.Context(), wk.Count(5))))
	if err := a.GiveBack(t.Context(), res); err != nil {
		t.Fatal(err)
	}
	if n := 5 + takeUp(t, a, wk); n > 10 {
		t.Errorf("%d tokens of one window of 10 (res.At %v)", n, res.At)
	}
}

// A check took nothing.
func TestACheckCannotBeGivenBack(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	a := l.Autocommit(pool)
	k := ratelimit.MustDefine("check", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	takeOK(t, first(a.RateLimit(t.Context(), k.Count(5))))
	res := takeOK(t, first(a.CheckRateLimit(t.Context(), k.Count(5))))
	err := a.GiveBack(t.Context(), res)
	wantValue(t, l, pool, k, 5)
	t.Log(err)
}

// A reservation whose row has not moved on is undone exactly, also after its window.
func TestAReservationIsGivenBackAfterItsWindow(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), weirtest.NewClock(rig.Noon)
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	a := l.Autocommit(pool)
	k := ratelimit.MustDefine("res", window).For("k")
	takeOK(t, first(a.RateLimit(t.Context(), k.Count(10))))
	res := takeOK(t, first(a.RateLimit(t.Context(), k.Count(10).OrReserve())))
	if !res.RunAt.Equal(rig.Noon.Add(time.Minute)) {
		t.Fatal(res.RunAt)
	}
	c.Set(res.RunAt) // cancelled when it was about to run; nothing of the window was used
	if err := a.GiveBack(t.Context(), res); err != nil {
		t.Fatal(err)
	}
	if n := takeUp(t, a, k); n != 10 {
		t.Errorf("%d tokens in a window of 10 of which none was used", n)
	}
}

// A transaction may cross the border of a window.
func TestAReservationIsGivenBackInItsTransaction(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), weirtest.NewClock(rig.Noon)
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	k := ratelimit.MustDefine("res", window).For("k")
	takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), k.Count(10))))
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		res := takeOK(t, first(l.RateLimit(ctx, tx, k.Count(10).OrReserve())))
		c.Set(rig.Noon.Add(time.Minute))
		return l.GiveBack(ctx, tx, res)
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := takeUp(t, l.Autocommit(pool), k); n != 10 {
		t.Errorf("%d of 10: what was reserved and given back in one transaction is owed for ever", n)
	}
}

// No row means full, under every rule.
func TestGivingBackWithoutARowLeavesItFull(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	a := l.Autocommit(pool)
	k := ratelimit.MustDefine("gone", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}).For("k")
	res := takeOK(t, first(a.RateLimit(t.Context(), k.Rule(ratelimit.TokenBucket{Rate: 10, Period: rig.Never}))))
	rig.Exec(t, pool, `DELETE FROM weir_balance`)
	if err := a.GiveBack(t.Context(), res); err != nil {
		t.Fatal(err)
	}
	wantValue(t, l, pool, k, 100)
}
