package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func reader(t testing.TB, pool *pgxpool.Pool, cfg inspect.Config) *inspect.Reader {
	t.Helper()
	r, err := inspect.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Whatever is done, and over however many shards: from the rows alone it is read what the limiter
// tells that knows the rule, and FullAt is the first microsecond at which the limiter finds it
// full, but for the rounding of shards.
func TestInspectReadsWhatTheLimiterTells(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var short, owing, paused, sharded, windowed atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		if _, err := pool.Exec(t.Context(), `DELETE FROM weir_balance`); err != nil {
			t.Fatal(err)
		}
		c := rig.Clock()
		l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		look, err := inspect.New(pool, inspect.Config{Clock: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		a := l.Autocommit(pool)
		anyRule := rapid.OneOf(rig.ExactRule(), rig.OddRule())
		rule := anyRule.Draw(t, "rule")
		n := rapid.SampledFrom([]int{1, 1, 2, 3, 7, 32}).Draw(t, "shards")
		limit := ratelimit.MustDefine("seen", rule, ratelimit.Shards(n))
		request := func() ratelimit.Request { return limit.For("k").Rule(rule) }
		if err := a.ResetRateLimit(t.Context(), request()); err != nil { // makes the rows
			t.Fatal(err)
		}
		check := func(t *rapid.T) (inspect.Balance, ratelimit.State) {
			want, err := a.Value(t.Context(), request())
			if err != nil {
				t.Fatal(err)
			}
			got, err := look.Balance(t.Context(), "seen", "k")
			if err != nil {
				t.Fatal(err)
			}
			numbers := rig.NumbersOf(rule)
			if got.Problem != "" || got.Value != want.Value || !got.PausedUntil.Equal(want.PausedUntil) ||
				got.Capacity != numbers.Capacity || got.Rate != numbers.Rate ||
				got.Period != numbers.Period || got.Windowed != numbers.Windowed ||
				!got.At.Equal(c.Now()) || got.FullAt.IsZero() != (got.Value == got.Capacity) {
				t.Fatalf("read %+v\nthe limiter tells %+v, %+v", got, want, numbers)
			}
			if want := rig.WindowEnd(numbers, request(), c.Now()); !got.WindowEnds.Equal(want) {
				t.Fatalf("the window ends at %v, want %v", got.WindowEnds, want)
			}
			return got, want
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				r := anyAhead(t, rig.NumbersOf(rule).Period)
				count := min(rig.NumbersOf(rule).Capacity, rapid.SampledFrom([]float64{0, 1, 2, 7, 1e9}).Draw(t, "count"))
				if _, err := a.RateLimit(t.Context(), r(request().Count(count))); err != nil &&
					!errors.Is(err, ratelimit.ErrInvalid) {
					t.Fatal(err)
				}
			},
			"pause": func(t *rapid.T) {
				d := rapid.SampledFrom([]time.Duration{time.Microsecond, rig.NumbersOf(rule).Period,
					3 * rig.NumbersOf(rule).Period}).Draw(t, "d")
				if err := a.Pause(t.Context(), d, request()); err != nil {
					t.Fatal(err)
				}
			},
			"resume or reset": func(t *rapid.T) {
				do := rapid.SampledFrom([]func(context.Context, ...ratelimit.Request) error{a.Resume, a.ResetRateLimit}).Draw(t, "do")
				if err := do(t.Context(), request()); err != nil {
					t.Fatal(err)
				}
			},
			"tick": func(t *rapid.T) {
				c.Add(rapid.SampledFrom([]time.Duration{time.Microsecond,
					rig.NumbersOf(rule).Period / 7, rig.NumbersOf(rule).Period,
					-time.Second}).Draw(t, "by").Truncate(time.Microsecond))
			},
			"another rule": func(t *rapid.T) {
				if n > 1 {
					return // a shard that was not taken from since has the old one
				}
				rule = anyRule.Draw(t, "rule")
				res, err := a.RateLimit(t.Context(), request().Count(0).OrReserve()) // writes it, if it is granted
				if err == nil && !res.OK {
					err = a.ResetRateLimit(t.Context(), request())
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				b, _ := check(t)
				count := func(of *atomic.Int64, yes bool) {
					if yes {
						of.Add(1)
					}
				}
				count(&short, b.Value < b.Capacity)
				count(&owing, b.Value < 0)
				count(&paused, !b.PausedUntil.IsZero())
				count(&sharded, b.Shards > 1)
				count(&windowed, b.Windowed)
				if at := b.FullAt; !at.IsZero() && at.Year() < 9999 {
					now := c.Now()
					c.Set(at.Add(-time.Microsecond))
					if _, s := check(t); s.Value >= b.Capacity && b.Shards == 1 {
						t.Fatalf("it is full a microsecond before %v", at)
					}
					c.Set(at)
					if _, s := check(t); s.Value != b.Capacity {
						t.Fatalf("it has %v at %v, and not %v", s.Value, at, b.Capacity)
					}
					c.Set(now)
				}
			},
		})
	})
	for name, n := range map[string]*atomic.Int64{"short": &short, "owing": &owing,
		"paused": &paused, "sharded": &sharded,
		"windowed": &windowed} {
		if !t.Failed() && n.Load() < 5 {
			t.Errorf("only %d balances were %s", n.Load(), name)
		}
	}
}

func TestInspectListsLimits(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), rig.Clock()
	a := rig.Limiter(t, ratelimit.Config{Clock: c.Now}).Autocommit(pool)
	look := reader(t, pool, inspect.Config{Clock: c.Now})
	if got, err := look.Limits(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("of no limits: %+v, %v", got, err)
	}
	chat := ratelimit.MustDefine("chat", ratelimit.TokenBucket{Rate: 100, Period: time.Minute})
	hot := ratelimit.MustDefine("hot", ratelimit.FixedWindow{Rate: 1000, Period: time.Hour}, ratelimit.Shards(4))
	tried := ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 5, Period: time.Second}, ratelimit.Shadow())
	plan := ratelimit.TokenBucket{Rate: 7, Period: time.Second, Capacity: ratelimit.Tokens(70)}
	takeOK(t, first(a.RateLimit(t.Context(), chat.For("calm"))))
	takeOK(t, first(a.RateLimit(t.Context(), chat.For("short").Count(91))))
	takeOK(t, first(a.RateLimit(t.Context(), chat.For("owing").Count(110).OrReserve())))
	takeOK(t, first(a.RateLimit(t.Context(), hot.Global().Count(300), tried.For("x"))))
	if err := a.Pause(t.Context(), time.Hour, chat.For("paused")); err != nil {
		t.Fatal(err)
	}
	c.Add(time.Millisecond)
	takeOK(t, first(a.RateLimit(t.Context(), chat.For("bought").Rule(plan))))
	at := c.Now()
	got, err := look.Limits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, tightest := range []float64{-0.1, 0.7, 0.8} { // and what a millisecond has brought
		if l := &got[i]; l.Tightest < tightest || l.Tightest > tightest+0.002 {
			t.Errorf("%s: of the key that has least %v is left, want %v", l.Name, l.Tightest, tightest)
		}
		got[i].Tightest = 0
	}
	want := []inspect.Limit{
		{Name: "chat", Capacity: 70, Rate: 7, Period: time.Second, Shards: 1, WrittenAt: at,
			Keys: 5, Looked: 5, Short: 2, InDebt: 1,
			Paused: 1, At: at},
		{Name: "hot", Capacity: 1000, Rate: 1000, Period: time.Hour, Windowed: true, Shards: 4,
			WrittenAt: at.Add(-time.Millisecond),
			Keys:      1, Looked: 1, At: at},
		{Name: "hot (shadow)", Shadow: true, Capacity: 5, Rate: 5, Period: time.Second, Shards: 1,
			WrittenAt: at.Add(-time.Millisecond),
			Keys:      1, Looked: 1, At: at},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	got[0], err = look.Limit(t.Context(), "chat")
	if got[0].Tightest = 0; err != nil || got[0] != want[0] {
		t.Errorf("%+v, %v", got[0], err)
	}
	if _, err := look.Limit(t.Context(), "cha"); !errors.Is(err, inspect.ErrNoBalance) {
		t.Error(err)
	}
	if _, err := look.Balance(t.Context(), "chat", "cal"); !errors.Is(err, inspect.ErrNoBalance) {
		t.Error(err)
	}
	if b, err := look.Balance(t.Context(), "hot", ""); err != nil || b.Value != 700 || b.Shards != 4 {
		t.Errorf("%+v, %v", b, err)
	}
}

// Pages put together are all keys, each once and in order, the one of a limit without keys among
// them.
func TestInspectPagesThroughKeys(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), rig.Clock()
	a := rig.Limiter(t, ratelimit.Config{Clock: c.Now}).Autocommit(pool)
	look := reader(t, pool, inspect.Config{Clock: c.Now})
	limit := ratelimit.MustDefine("paged", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	hot := ratelimit.MustDefine("paged", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(3))
	other := ratelimit.MustDefine("paged2", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	keys := []string{""}
	for i := range 23 {
		keys = append(keys, fmt.Sprintf("org %02d", i), fmt.Sprintf("%02d ö", i))
	}
	slices.Sort(keys)
	for i, key := range keys {
		r := limit.For(key)
		switch {
		case key == "":
			r = limit.Global()
		case i%5 == 0:
			r = hot.For(key).Count(9)
		}
		takeOK(t, first(a.RateLimit(t.Context(), r, other.For("org x"))))
		if i == 8 {
			break // of the others there is one take each below
		}
	}
	for _, key := range keys[9:] {
		takeOK(t, first(a.RateLimit(t.Context(), limit.For(key))))
	}
	for _, tc := range []struct {
		page inspect.Page
		want []string
	}{
		{inspect.Page{}, keys},
		{inspect.Page{Most: 1}, keys},
		{inspect.Page{Most: 7}, keys},
		{inspect.Page{Most: len(keys)}, keys},
		{inspect.Page{Prefix: "org 1", Most: 3}, keys[slices.Index(keys, "org 10") : slices.Index(keys, "org 19")+1]},
		{inspect.Page{Prefix: "org 1", From: "org 18"}, []string{"org 18", "org 19"}},
		{inspect.Page{From: "org 215"}, []string{"org 22"}},
		{inspect.Page{Prefix: "no"}, nil},
		{inspect.Page{Prefix: "zz", From: "org 18"}, nil},
	} {
		var got []string
		for page := tc.page; ; {
			balances, next, err := look.Keys(t.Context(), "paged", page)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range balances {
				got = append(got, b.Key)
				if one, err := look.Balance(t.Context(), "paged", b.Key); err != nil || one != b {
					t.Errorf("on a page %+v\nand alone %+v, %v", b, one, err)
				}
			}
			if page.From = next; next == "" {
				break
			}
			if len(balances) != page.Most {
				t.Errorf("%+v: %d keys on a page that is not the last", page, len(balances))
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %q", tc.page, got)
		}
	}
	for _, most := range []int{-1, 1001} {
		if _, _, err := look.Keys(t.Context(), "paged", inspect.Page{Most: most}); !errors.Is(err,
			ratelimit.ErrInvalid) {
			t.Error(most, err)
		}
	}
}
