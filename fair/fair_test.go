package fair_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/fair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// appetites are what tenants want, in tokens a second.
type appetites []float64

// maxMin are the fair shares of rate: nobody could have more but for somebody who has less.
func (a appetites) maxMin(rate float64, weights []float64) []float64 {
	shares := make([]float64, len(a))
	open := make([]int, len(a))
	for i := range a {
		open[i] = i
	}
	for len(open) > 0 {
		sum := 0.0
		for _, i := range open {
			sum += weights[i]
		}
		level := rate / sum
		had := len(open)
		open = slices.DeleteFunc(open, func(i int) bool {
			if a[i] > level*weights[i] {
				return false
			}
			shares[i] = a[i]
			rate -= a[i]
			return true
		})
		if len(open) == had {
			for _, i := range open {
				shares[i] = level * weights[i]
			}
			break
		}
	}
	return shares
}

// jain is Jain's index of fairness (DEC-TR-301, 1984): 1 if all are alike, 1/n if one has
// everything.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

// play lets tenants come for some windows, each at random and without minding RetryAt, by either of
// two processes. It returns what each has asked for and was granted a second, once the first window
// is over.
func (a appetites) play(windows int, c *weirtest.Clock, take func(process, tenant int) bool) (asked,
	granted []float64) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	next := make([]float64, len(a))
	for i := range next {
		next[i] = random.ExpFloat64() / a[i]
	}
	start := c.Now()
	asked, granted = make([]float64, len(a)), make([]float64, len(a))
	lasts := time.Duration(windows) * window
	for {
		i := 0
		for j := range next {
			if next[j] < next[i] {
				i = j
			}
		}
		at := time.Duration(next[i] * float64(time.Second))
		if at > lasts {
			break
		}
		c.Set(start.Add(at))
		ok := take(random.IntN(2), i)
		if at > window {
			asked[i]++
			if ok {
				granted[i]++
			}
		}
		next[i] += random.ExpFloat64() / a[i]
	}
	for i := range granted {
		asked[i] /= (lasts - window).Seconds()
		granted[i] /= (lasts - window).Seconds()
	}
	return asked, granted
}

const rate, window = 20.0, 10 * time.Second

var rule = ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(200)}

// Tenants of appetites that differ two hundredfold get what max-min fairness gives them, and all
// that flows is used; without the package each gets according to its appetite.
func TestTenantsOfVeryDifferentAppetiteHaveFairShares(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		appetites appetites
		weights   []float64
		least     float64 // of Jain's index
		unfair    float64 // the most that it is without
	}{
		"from 1 to 200":          {appetites{1, 1, 4, 10, 40, 200}, []float64{1, 1, 1, 1, 1, 1}, 0.99, 0.5},
		"many small, few greedy": {appetites{.2, .2, .2, .2, .2, .2, 4, 4, 4, 4, 80, 80}, slices.Repeat([]float64{1}, 12), 0.97, 0.5},
		"weights":                {appetites{60, 60, 60, 1}, []float64{1, 2, 4, 1}, 0.99, 0.9},
		"alone":                  {appetites{60}, []float64{1}, 1, 1},
		"enough for all":         {appetites{5, 2, 8}, []float64{1, 1, 1}, 0.99, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shares := func(fairly bool) (x []float64, sum, wanted float64) {
				pool, c := pgtest.Pool(t), new(weirtest.Clock)
				var processes [2]*fair.Limit
				var limits [2]*ratelimit.Autocommit
				for i := range processes {
					processes[i] = fair.MustDefine("model", rule, fair.Config{Window: window})
					l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: c.Now})
					if err != nil {
						t.Fatal(err)
					}
					limits[i] = l.Autocommit(pool)
				}
				asked, got := tc.appetites.play(5, c, func(p, i int) bool {
					var res ratelimit.Result
					var err error
					if fairly {
						res, err = processes[p].RateLimit(t.Context(), limits[p],
							fair.Tenant{Key: string(rune('a' + i)), Weight: tc.weights[i]}, 1)
					} else {
						res, err = limits[p].RateLimit(t.Context(), processes[p].Total().Global())
					}
					if err != nil {
						t.Fatal(err)
					}
					return res.OK
				})
				want := appetites(asked).maxMin(rate, tc.weights)
				x = make([]float64, len(got))
				for i := range got {
					x[i] = got[i] / want[i]
					sum += got[i]
					wanted += want[i]
				}
				return x, sum, wanted
			}
			x, sum, wanted := shares(true)
			if index := jain(x); index < tc.least-1e-9 || sum < 0.95*wanted || sum > 1.05*wanted {
				t.Errorf("Jain's index %.3f, %.2f granted a second of %.2f; shares %.2f", index, sum, wanted, x)
			} else {
				t.Logf("Jain's index %.4f, %.2f granted a second of %.2f", index, sum, wanted)
			}
			if tc.unfair == 1 {
				return
			}
			if x, _, _ := shares(false); jain(x) > tc.unfair {
				t.Errorf("without, Jain's index is %.3f", jain(x))
			}
		})
	}
}

// In a transaction both rows, and what else is asked for, are taken or none.
func TestAFairTakeRollsBackWithTheTransaction(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), weirtest.NewClock(time.Unix(1_800_000_000, 0))
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	model := fair.MustDefine("model", ratelimit.TokenBucket{Rate: 10, Period: time.Hour},
		fair.Config{Window: 24 * time.Hour})
	own := ratelimit.MustDefine("own", ratelimit.TokenBucket{Rate: 3, Period: time.Hour})
	left := func() (values [3]float64) {
		for i, r := range []ratelimit.Request{model.Total().Global(), model.Used().For("acme"), own.For("acme")} {
			s, err := limiter.Autocommit(pool).Value(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			values[i] = math.Round(s.Value)
		}
		return values
	}
	undo := errors.New("undo")
	err = limiter.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		res, err := model.RateLimit(ctx, limiter.In(tx), fair.Tenant{Key: "acme"}, 2, own.For("acme"))
		if err != nil || !res.OK {
			t.Errorf("%+v, %v", res, err)
		}
		return undo
	})
	if !errors.Is(err, undo) || left() != [3]float64{10, 1e9, 3} {
		t.Errorf("%v: left are %v", err, left())
	}
	res, err := model.RateLimit(t.Context(), limiter.Autocommit(pool), fair.Tenant{Key: "acme"}, 2,
		own.For("acme").Count(3))
	if err != nil || !res.OK || left() != [3]float64{8, 1e9 - 2, 0} {
		t.Errorf("%+v, %v: left are %v", res, err, left())
	}
	res, err = model.RateLimit(t.Context(), limiter.Autocommit(pool), fair.Tenant{Key: "acme"}, 2, own.For("acme"))
	if err != nil || res.OK || res.Limit != "own" || left() != [3]float64{8, 1e9 - 2, 0} {
		t.Errorf("%+v, %v: left are %v", res, err, left())
	}
}

// What is known of a tenant's use is that of the present window: in the next it is not denied for
// what it has used before.
func TestANewWindowForgetsWhatWasUsed(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), weirtest.NewClock(time.Unix(1_800_000_000, 0))
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	limits := limiter.Autocommit(pool)
	model := fair.MustDefine("model", ratelimit.TokenBucket{Rate: 10, Period: time.Minute,
		Capacity: ratelimit.Tokens(100)}, fair.Config{})
	for range 11 { // of which there are then 56 to leave
		if _, err := model.RateLimit(t.Context(), limits, fair.Tenant{Key: "acme"}, 8); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := model.RateLimit(t.Context(), limits, fair.Tenant{Key: "acme"}, 8); err != nil || res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	if res, err := model.RateLimit(t.Context(), limits, fair.Tenant{Key: "other"}, 8); err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	c.Add(time.Minute)
	if res, err := model.RateLimit(t.Context(), limits, fair.Tenant{Key: "acme"}, 8); err != nil || !res.OK {
		t.Errorf("in the next window: %+v, %v", res, err)
	}
}

// A clock that was ahead for a moment, or is set back, leaves the process learning what tenants
// use, although one of them has a row in the future from then on.
func TestUseIsLearntAfterAClockJump(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{
		"none": 0, "ahead for a moment": 365 * 24 * time.Hour, "back": -365 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, c := pgtest.Pool(t), weirtest.NewClock(time.Unix(1_800_000_000, 0))
			limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: c.Now})
			if err != nil {
				t.Fatal(err)
			}
			limits := limiter.Autocommit(pool)
			model := fair.MustDefine("model", ratelimit.TokenBucket{Rate: 10, Period: time.Minute,
				Capacity: ratelimit.Tokens(100)}, fair.Config{})
			take := func(tenant string) bool {
				t.Helper()
				res, err := model.RateLimit(t.Context(), limits, fair.Tenant{Key: tenant}, 8)
				if err != nil {
					t.Fatal(err)
				}
				return res.OK
			}
			take("greedy")
			if jump > 0 {
				c.Add(jump)
				take("caught") // whose row is in the future from now on
				c.Add(time.Minute - jump)
			} else {
				c.Add(jump)
			}
			reset := []ratelimit.Request{model.Total().Global(), model.Used().For("greedy"), model.Used().For("modest")}
			if err := limits.ResetRateLimit(t.Context(), reset...); err != nil {
				t.Fatal(err)
			}
			granted := 0
			for range 12 {
				if take("greedy") {
					granted++
				}
				if jump > 0 {
					_, _ = model.RateLimit(t.Context(), limits, fair.Tenant{Key: "caught"}, 0)
				}
			}
			if granted < 2 || granted > 6 || !take("modest") {
				t.Errorf("%d granted to one of 12, want 2 to 6: what is left is for others", granted)
			}
		})
	}
}

func TestBadLimitsAndTenantsAreRefused(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]fair.Config{
		"window": {Window: -time.Second},
		"most":   {Most: -1},
		"NaN":    {Most: math.NaN()},
		"shards": {Options: []ratelimit.Option{ratelimit.Shards(-1)}},
	} {
		if _, err := fair.Define("model", rule, cfg); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := fair.Define(strings.Repeat("n", 255), rule, fair.Config{}); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("a long name: %v", err)
	}
	l := fair.MustDefine("model", rule, fair.Config{})
	for _, weight := range []float64{-1, math.NaN(), math.Inf(1)} {
		if _, err := l.RateLimit(t.Context(), nil, fair.Tenant{Key: "a", Weight: weight},
			1); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("weight %v: %v", weight, err)
		}
	}
}

// A process that has not seen what a tenant has used in another one learns it with the denial, and
// then says when the tenant is granted.
func TestADenialKnowsWhatOtherProcessesHaveGranted(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"never seen": 0, "seen long ago": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := weirtest.NewClock(time.Unix(1_800_000_000, 0))
			limits := &weirtest.Limiter{Clock: c}
			rule := ratelimit.TokenBucket{Rate: 10, Period: time.Minute, Capacity: ratelimit.Tokens(100)}
			cfg := fair.Config{Window: time.Hour}
			here, there := fair.MustDefine("model", rule, cfg), fair.MustDefine("model", rule, cfg)
			take := func(l *fair.Limit, tenant string) ratelimit.Result {
				t.Helper()
				res, err := l.RateLimit(t.Context(), limits, fair.Tenant{Key: tenant}, 8)
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			for range before {
				take(here, "acme")
			}
			for range 12 {
				take(there, "acme")
			}
			for range 20 {
				take(there, "another")
			}
			denied := take(here, "acme")
			if denied.OK {
				t.Fatalf("%+v, want a denial", denied)
			}
			c.Set(denied.RetryAt)
			if res := take(here, "acme"); !res.OK {
				t.Errorf("denied until %v, and then until %v", denied.RetryAt, res.RetryAt)
			}
		})
	}
}
