package integration

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Whatever is done, in whatever order: who prunes in between is told the same as who does not.
func TestPruningChangesNoAnswer(t *testing.T) {
	t.Parallel()
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprintf("portable %v", portable), func(t *testing.T) {
			t.Parallel()
			pruningChangesNoAnswer(t, portable)
		})
	}
}

func pruningChangesNoAnswer(t *testing.T, portable bool) {
	pools := [2]*pgxpool.Pool{pgtest.Pool(t), pgtest.Pool(t)}
	var deleted atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		c := rig.Clock()
		var a [2]*ratelimit.Autocommit
		var l [2]*ratelimit.Limiter
		for i, pool := range pools {
			if _, err := pool.Exec(t.Context(),
				`WITH gone AS (DELETE FROM weir_settled) DELETE FROM weir_balance`); err != nil {
				t.Fatal(err)
			}
			var err error
			if l[i], err = ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Portable: portable,
				Clock: c.Now}); err != nil {
				t.Fatal(err)
			}
			a[i] = l[i].Autocommit(pool)
		}
		rule := rapid.OneOf(rig.ExactRule(), rig.OddRule()).Filter(func(r ratelimit.Rule) bool {
			return rig.NumbersOf(r).Capacity >= 1
		}).Draw(t, "rule")
		shards := rapid.SampledFrom([]int{1, 1, 3}).Draw(t, "shards")
		limit := ratelimit.MustDefine("pruned", rule, ratelimit.Shards(shards))
		// A sum over shards is rounded otherwise than one row: by a microsecond, which may be
		// another window.
		slack := time.Duration(0)
		if shards > 1 {
			slack = time.Microsecond
			if _, ok := rule.(ratelimit.FixedWindow); ok {
				slack += rig.NumbersOf(rule).Period
			}
		}
		keys, period := []string{"a", "b", "c"}, rig.NumbersOf(rule).Period
		var kept [][2]ratelimit.Result
		both := func(what string, do func(a *ratelimit.Autocommit) (any, error)) {
			x, err := do(a[0])
			y, err2 := do(a[1])
			if (err == nil) != (err2 == nil) || fmt.Sprint(x) != fmt.Sprint(y) && !alike(x, y, slack) {
				t.Fatalf("%s: pruned %v, %v\nand not %v, %v", what, x, err, y, err2)
			}
		}
		request := func(t *rapid.T) ratelimit.Request { return limit.For(rapid.SampledFrom(keys).Draw(t, "key")) }
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				r, capacity := request(t), rig.NumbersOf(rule).Capacity
				r = r.Count(min(capacity,
					rapid.SampledFrom([]float64{0, 1, 2, capacity / 3, capacity}).Draw(t, "count")))
				with := anyAhead(t, period)
				var res [2]ratelimit.Result
				i := 0
				both("take", func(a *ratelimit.Autocommit) (any, error) {
					got, err := a.RateLimit(t.Context(), with(r))
					res[i], i = got, i+1
					if err != nil {
						return nil, err
					}
					runAt := got.RunAt
					if got.OK && runAt.IsZero() {
						// At once. A shard's share is a third rounded, so one shard may want a
						// microsecond more.
						runAt = got.At
					}
					return []any{got.OK, runAt, got.RetryAt, got.At, got.Outcomes[0].Value}, nil
				})
				if res[0].OK {
					kept = append(kept, res)
				}
			},
			"end": func(t *rapid.T) {
				// What comes back to a shard that is full by then is lost, while another shard may
				// lack as much. So with shards the answer depends on which shard a call has drawn,
				// pruned or not.
				if len(kept) == 0 || shards > 1 {
					return
				}
				i := rapid.IntRange(0, len(kept)-1).Draw(t, "which")
				pair := kept[i]
				kept = slices.Delete(slices.Clone(kept), i, i+1)
				how, j := rapid.SampledFrom([]string{"give back", "settle", "release"}).Draw(t, "how"), 0
				both(how, func(a *ratelimit.Autocommit) (any, error) {
					res := pair[j]
					j++
					r := res.Reservation()
					switch how {
					case "settle":
						return a.Settle(t.Context(), r, limit.For(r.Takes[0].Key).Count(r.Takes[0].Count/2))
					case "release":
						return a.Release(t.Context(), r)
					}
					return nil, a.GiveBack(t.Context(), res)
				})
			},
			"pause": func(t *rapid.T) {
				r, d := request(t), rapid.SampledFrom([]time.Duration{time.Millisecond, period}).Draw(t, "d")
				both("pause", func(a *ratelimit.Autocommit) (any, error) { return nil, a.Pause(t.Context(), d, r) })
			},
			"resume": func(t *rapid.T) {
				r := request(t)
				both("resume", func(a *ratelimit.Autocommit) (any, error) { return nil, a.Resume(t.Context(), r) })
			},
			"reset": func(t *rapid.T) {
				r := request(t)
				both("reset", func(a *ratelimit.Autocommit) (any, error) {
					return nil, a.ResetRateLimit(t.Context(), r)
				})
			},
			"tick": func(t *rapid.T) {
				c.Add(rapid.SampledFrom([]time.Duration{1, period / 7, period, 40 * period,
					31 * 24 * time.Hour}).Draw(t, "by").Truncate(time.Microsecond))
			},
			"": func(t *rapid.T) {
				done, err := l[0].Prune(t.Context(), pools[0],
					ratelimit.PruneConfig{Share: 1, Batch: rapid.IntRange(1, 4).Draw(t, "batch")})
				if err != nil {
					t.Fatal(err)
				}
				deleted.Add(done.Deleted)
				for _, key := range keys {
					both("value", func(a *ratelimit.Autocommit) (any, error) {
						s, err := a.Value(t.Context(), limit.For(key))
						return []any{s.Value, s.PausedUntil}, err
					})
				}
			},
		})
	})
	if !t.Failed() && deleted.Load() < 10 {
		t.Errorf("only %d balances were pruned", deleted.Load())
	}
}

// alike says that answers differ by no more than slack: the rounding of a sum over shards, which
// were used at other times since they were pruned. Without slack they are the same.
func alike(x, y any, slack time.Duration) bool {
	if slack == 0 {
		return false
	}
	a, ok := x.([]any)
	b, ok2 := y.([]any)
	if !ok || !ok2 || len(a) != len(b) {
		return false
	}
	for i := range a {
		switch v := a[i].(type) {
		case float64:
			w, ok := b[i].(float64)
			if !ok || math.Abs(v-w) > 1e-9*max(1, math.Abs(v)) {
				return false
			}
		case time.Time:
			w, ok := b[i].(time.Time)
			if !ok || v.Sub(w).Abs() > slack {
				return false
			}
		default:
			if a[i] != b[i] {
				return false
			}
		}
	}
	return true
}
