package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// left is what remains of a limit.
func left(t *testing.T, v rig.Verbs, r ratelimit.Request) float64 {
	t.Helper()
	s, err := v.Value(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s.Value
}

// A limit in the shadow decides as if it was enforced, and denies nobody: not alone, not beside
// others, and not where it could never grant. It takes from rows of its own even if it has the name
// of one that is enforced.
func TestAShadowDecidesAndNeverDenies(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		today := ratelimit.MustDefine("api", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
		trial := ratelimit.MustDefine("api", ratelimit.TokenBucket{Rate: 3, Period: rig.Never}, ratelimit.Shadow())
		other := ratelimit.MustDefine("other", ratelimit.FixedWindow{Rate: 2, Period: rig.Never}, ratelimit.Shadow())
		if trial.Name() != "api (shadow)" {
			t.Fatal(trial.Name())
		}
		for i := range 10 {
			res, err := v.RateLimit(t.Context(), trial.For("k"), today.For("k"), other.For("k"))
			if err != nil || !res.OK || !res.RetryAt.IsZero() || res.Err() != nil {
				t.Fatalf("call %d: %+v, %v", i, res, err)
			}
			for j, want := range []struct {
				limit  string
				shadow bool
				ok     bool
			}{{"api (shadow)", true, i < 3}, {"api", false, true}, {"other (shadow)", true, i < 2}} {
				o := res.Outcomes[j]
				if o.Limit != want.limit || o.Shadow != want.shadow || o.OK != want.ok ||
					o.RetryAt.IsZero() != want.ok || o.Key != "k" {
					t.Errorf("call %d, outcome %d: %+v", i, j, o)
				}
			}
		}
		if a, b, c := left(t, v, today.For("k")), left(t, v, trial.For("k")), left(t, v,
			other.For("k")); a > 0.1 || b > 0.1 || c > 0.1 {
			t.Errorf("left are %v, %v, %v", a, b, c)
		}

		// Denied by what is enforced, the shadow is not asked.
		res, err := v.RateLimit(t.Context(), today.For("k"), trial.For("another"))
		if err != nil || res.OK || res.Limit != "api" || !res.Outcomes[1].Shadow ||
			!res.Outcomes[1].OK || res.Outcomes[1].Capacity != 0 {
			t.Errorf("denied: %+v, %v", res, err)
		}
		if got := left(t, v, trial.For("another")); got != 3 {
			t.Errorf("the shadow of a denied call has %v left", got)
		}

		// Alone, and more than it could ever grant.
		for n, ok := range map[float64]bool{1: true, 4: false} {
			res, err := v.RateLimit(t.Context(), trial.For("alone").Count(n))
			if err != nil || !res.OK || len(res.Outcomes) != 1 || res.Outcomes[0].OK != ok {
				t.Errorf("%v of 3: %+v, %v", n, res, err)
			}
			if err := v.GiveBack(t.Context(), res); err != nil {
				t.Errorf("give back %v: %v", n, err)
			}
		}
		if got := left(t, v, trial.For("alone")); got < 3 {
			t.Errorf("given back, there are %v", got)
		}
		// Nor is it an error that it grants as much only at some times of the window.
		seldom := ratelimit.MustDefine("seldom", ratelimit.FixedWindow{Rate: 10, Period: time.Minute}, ratelimit.Shadow())
		if res, err := v.RateLimit(t.Context(), seldom.For("k").Count(15).Within(30*time.Second)); err != nil || !res.OK || res.Outcomes[0].OK {
			t.Errorf("15 of 10: %+v, %v", res, err)
		}
		if _, err := v.RateLimit(t.Context(), trial.For("")); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("without a key: %v", err)
		}
		checked, err := v.CheckRateLimit(t.Context(), today.For("fresh"), trial.For("k"), other.For("fresh"))
		if err != nil || !checked.OK || checked.Outcomes[1].OK || !checked.Outcomes[2].OK ||
			checked.Outcomes[1].RetryAt.IsZero() {
			t.Errorf("checked: %+v, %v", checked, err)
		}
	})
}

// What is reserved of a shadow delays nothing, is settled by nobody, and is given back with the
// rest.
func TestAShadowDelaysNoWork(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		real := ratelimit.MustDefine("real", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
		trial := ratelimit.MustDefine("trial", ratelimit.TokenBucket{Rate: 3, Period: time.Hour}, ratelimit.Shadow())
		res, err := v.RateLimit(t.Context(), real.For("k").Count(5).OrReserve(), trial.For("k").Count(5).OrReserve())
		if err != nil || !res.OK || !res.RunAt.IsZero() || res.Outcomes[1].RunAt.IsZero() {
			t.Fatalf("%+v, %v", res, err)
		}
		r := res.Reservation()
		if len(r.Takes) != 1 || r.Takes[0].Limit != "real" {
			t.Errorf("reserved are %+v", r.Takes)
		}
		if settled, err := v.Settle(t.Context(), r, real.For("k").Count(2),
			trial.For("k").Count(2)); err != nil || !settled {
			t.Errorf("settled: %v, %v", settled, err)
		}
		if a, b := left(t, v, real.For("k")), left(t, v, trial.For("k")); a < 8 || a > 8.1 || b > -1.9 {
			t.Errorf("settled, there are %v and %v", a, b)
		}
		res = takeOK(t, first(v.RateLimit(t.Context(), real.For("j"), trial.For("j"))))
		if err := v.GiveBack(t.Context(), res); err != nil {
			t.Fatal(err)
		}
		if a, b := left(t, v, real.For("j")), left(t, v, trial.For("j")); a != 10 || b != 3 {
			t.Errorf("given back, there are %v and %v", a, b)
		}
	})
}

// A shadow's row conflicts as any other does, and the transaction runs again; rolled back, it has
// counted nothing.
func TestAShadowRollsBackWithTheTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	trial := ratelimit.MustDefine("trial", ratelimit.TokenBucket{Rate: 3, Period: rig.Never}, ratelimit.Shadow())
	undo := errors.New("undo")
	for range 2 {
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if res, err := l.RateLimit(ctx, tx, trial.For("k")); err != nil || !res.OK {
				t.Errorf("%+v, %v", res, err)
			}
			return undo
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
	}
	if got := left(t, l.Autocommit(pool), trial.For("k")); got != 3 {
		t.Errorf("rolled back, there are %v", got)
	}
}

// A call of Autocommit takes nothing if a shadow cannot be asked: one transaction holds both.
func TestACallTakesNothingIfItsShadowFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	trial := ratelimit.MustDefine("trial", ratelimit.TokenBucket{Rate: 3, Period: rig.Never}, ratelimit.Shadow())
	real := ratelimit.MustDefine("real", ratelimit.TokenBucket{Rate: 3, Period: rig.Never})
	if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance ADD CONSTRAINT no_trial CHECK (name <> 'trial (shadow)') NOT VALID`); err != nil {
		t.Fatal(err)
	}
	res, err := a.RateLimit(t.Context(), real.For("k"), trial.For("k"))
	if err == nil {
		t.Errorf("no error: %+v", res)
	}
	if got := left(t, a, real.For("k")); got != 3 {
		t.Errorf("there are %v, want 3", got)
	}
}

// A coalesced call whose limits are granted is not failed by a shadow that cannot be asked.
func TestACoalescedCallSurvivesItsShadow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	trial := ratelimit.MustDefine("trial", ratelimit.TokenBucket{Rate: 3, Period: rig.Never}, ratelimit.Shadow())
	real := ratelimit.MustDefine("real", ratelimit.TokenBucket{Rate: 3, Period: rig.Never})
	takeOK(t, first(c.RateLimit(t.Context(), trial.For("k"))))
	if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance ADD CONSTRAINT no_trial CHECK (name <> 'trial (shadow)') NOT VALID`); err != nil {
		t.Fatal(err)
	}
	res := takeOK(t, first(c.RateLimit(t.Context(), real.For("k"), trial.For("k"))))
	if !res.Outcomes[1].OK || !res.Outcomes[1].Shadow || res.Outcomes[1].Capacity != 0 {
		t.Errorf("%+v", res.Outcomes[1])
	}
	if res := takeOK(t, first(c.RateLimit(t.Context(), trial.For("k")))); res.Decided() {
		t.Errorf("a shadow that could not be asked has decided: %+v", res)
	}
}
