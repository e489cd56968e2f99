package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// The line of those who wait is that of one balance, to the window: what is laid over shards in equal parts adds up to itself.
func TestTheLineOfAWindowWithShardsIsThatOfOneBalance(t *testing.T) {
	t.Parallel()
	eachWayTwice(t, func(t *testing.T, v, _ verbs, clock *clock, _ *pgxpool.Pool) {
		rule := ratelimit.FixedWindow{Rate: 10, Period: time.Hour, Start: clock.now()}
		for _, n := range []int{3, 7, 11, 16, 23} {
			many := ratelimit.MustDefine(fmt.Sprint("line", n), rule, ratelimit.Shards(n))
			one := ratelimit.MustDefine(fmt.Sprint("one", n), rule)
			for i, count := range []float64{10, 10, 3, 7, 5, 5, 1, 1, 8, 10, 2.5, 7.5, 10} {
				a, err := v.RateLimit(t.Context(), many.For("k").Count(count).OrReserve())
				if err != nil {
					t.Fatal(err)
				}
				b, err := v.RateLimit(t.Context(), one.For("k").Count(count).OrReserve())
				if err != nil {
					t.Fatal(err)
				}
				if !a.RunAt.Equal(b.RunAt) {
					t.Errorf("%d shards, take %d: in line until %v with %v left, and with one balance until %v with %v", n, i,
						a.RunAt, a.Outcomes[0].Value, b.RunAt, b.Outcomes[0].Value)
				}
			}
		}
	})
}
