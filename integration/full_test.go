package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A denial says if it is of a line that is full, and not of tokens that the key has used, or of a
// wait that is too long.
func TestADenialSaysIfTheLineIsFull(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		limit := ratelimit.MustDefine("line",
			ratelimit.TokenBucket{Rate: 10, Period: rig.Never, MaxReserved: ratelimit.Tokens(5)})
		if res, err := v.RateLimit(t.Context(), limit.For("k").Count(13).OrReserve()); err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, tc := range []struct {
			request ratelimit.Request
			want    float64
		}{
			{limit.For("k").Count(3).OrReserve(), 5},
			{limit.For("k").Count(3), 0},
			{limit.For("k").Within(time.Second), 0}, // there is room, but too far ahead
		} {
			res, err := v.RateLimit(t.Context(), tc.request)
			var denied *ratelimit.DeniedError
			if err != nil || !errors.As(res.Err(), &denied) || denied.MaxReserved != tc.want {
				t.Errorf("%v: %v, %v, want a denial with a MaxReserved of %v", tc.request, res.Err(), err, tc.want)
			}
		}
	})
}
