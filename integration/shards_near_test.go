package integration

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Reservations from a long line of a limit with shards may run near the time that one balance gives
// them: a shard is chosen by the best of three, and two processes that take in turn know of each
// other's takes only what they read. The unit is the time in which each shard repays the largest
// count. One take in a hundred may be further away. Of windows there is one more difference: work
// may run in the same window or the next.
func TestReservationsFromShardsRunNearTheTimeOfOneBalance(t *testing.T) {
	t.Parallel()
	const unit, n, rate, takes = time.Second, 16, 8 * 16, 800
	for kind, is := range map[string]struct {
		rule  ratelimit.Rule
		bound time.Duration
	}{
		"bucket": {ratelimit.TokenBucket{Rate: rate, Period: unit, Capacity: ratelimit.Tokens(8 * rate)}, 5 * unit},
		"window": {ratelimit.FixedWindow{Rate: 8 * rate, Period: 8 * unit, Start: rig.Clock().Now()}, 8 * unit},
	} {
		for name, count := range map[string]func() float64{
			"equal": func() float64 { return 8 },
			"mixed": func() float64 { return float64(1 + rand.IntN(8)) },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				pool, clock := pgtest.Pool(t), rig.Clock()
				many := ratelimit.MustDefine("many", is.rule, ratelimit.Shards(n)).For("k")
				one := ratelimit.MustDefine("one", is.rule).For("k")
				var processes [2]ratelimit.Verbs
				for i := range processes {
					processes[i] = rig.Limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pool)
				}
				runAt := func(i int, r ratelimit.Request) time.Time {
					res := takeOK(t, first(processes[i%2].RateLimit(t.Context(), r.OrReserve())))
					if res.RunAt.IsZero() {
						return clock.Now()
					}
					return res.RunAt
				}
				far := 0
				for i := range takes {
					c := count()
					told, ideal := runAt(i, many.Count(c)), runAt(i, one.Count(c))
					if d := told.Sub(ideal); d.Abs() > is.bound {
						t.Logf("take %d may run at %v, %v after that of one balance", i, told, d)
						far++
					}
					if i%n == 0 {
						clock.Add(unit / 4)
					}
				}
				if far > takes/100 {
					t.Errorf("%d of %d takes run more than %v before or after that of one balance", far, takes, is.bound)
				}
			})
		}
	}
}
