package model

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Each shard of a limit is a balance by itself: what concurrent callers have taken from it, by the
// takes of their reservations, what they have given back and their resets are those of one balance
// with its share of the rule, in an order that respects which transactions had ended when others
// began.
func TestEachShardIsLinearizable(t *testing.T) {
	t.Parallel()
	for _, r := range roads {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 9 })
			l := rig.Limiter(t, ratelimit.Config{Portable: r.portable})
			run := r.open(t, l, pool)
			var seen tally
			for round := range rig.Rounds(t, 6) { // which all lack a reset once in 10^8 times
				n := []int{2, 5}[round%2]
				rule := func(n float64) ratelimit.Rule {
					if round/2%2 == 0 {
						return ratelimit.TokenBucket{Rate: 10 / n, Period: rig.Century,
							MaxReserved: ratelimit.Tokens(5 / n)}
					}
					return ratelimit.FixedWindow{Rate: 10 / n, Period: rig.Century,
						MaxReserved: ratelimit.Tokens(5 / n), Start: rig.Noon}
				}
				limit := ratelimit.MustDefine(fmt.Sprint("shards", round), rule(1), ratelimit.Shards(n))
				share := balance{rule(float64(n)), ratelimit.MustDefine("share", rule(float64(n))), ""}
				m := mix{
					balances: balances{{rule(1), limit, "k"}},
					sharded:  slices.Repeat([]balance{share}, n), clients: 5, calls: 14,
					single: r.name == "DatabaseSQL", counts: []float64{0, 1, 1, 2, 3.5, 7},
				}
				rig.Take(t, l.Autocommit(pool), limit.For("k").Count(0)) // makes the shards
				h := m.record(t, r, run)
				seen.add(t, h)
				h.mustBeExplained(t, false)
			}
			t.Logf("%v", seen.n)
			if seen.granted == 0 || seen.n[givingBack] == 0 || seen.n[resetting] == 0 {
				t.Errorf("%v: the test should see all of them", seen.n)
			}
		})
	}
}

// A take of all that a balance has may be granted at once although the model, whose clock has seen a
// little less come, has it wait for that; one of more than there is may not.
func TestATakeOfAllThereIsIsExplainedEitherWay(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 5, Period: rig.Century, MaxReserved: ratelimit.Tokens(2)}
	limit := ratelimit.MustDefine("all", rule)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		count     float64
		explained int
	}{{2 - 1e-11, 1}, {2, 1}, {2 + 1e-11, 1}, {2 + 1e-3, 0}, {3, 0}} {
		p := part{verb: taking, Numbers: rig.NumbersOf(rule), result: ratelimit.Result{OK: true, At: at},
			request: limit.Global().Count(tc.count).OrReserve(),
			outcome: ratelimit.Outcome{OK: true, Value: 2 - tc.count}}
		if got := len(p.after(ratelimit.State{Value: 2, TS: at})); got != tc.explained {
			t.Errorf("2 tokens explain in %d ways that %v were granted at once, want %d", got, tc.count, tc.explained)
		}
	}
}
