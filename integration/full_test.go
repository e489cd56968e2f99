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
		credit := ratelimit.MustDefine("credit",
			ratelimit.TokenBucket{Rate: 10, Period: rig.Never, MaxReserved: ratelimit.Tokens(10)})
		if res, err := v.RateLimit(t.Context(), credit.For("k").Count(15).OrReserve()); err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, tc := range []struct {
			request ratelimit.Request
			want    float64
		}{
			{credit.For("k").Count(6).OnCredit().Within(time.Second), 0}, // its own count is no debt that it waits for
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

// So does a denial of a batch.
func TestADenialOfABatchSaysIfTheLineIsFull(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	key := ratelimit.MustDefine("line",
		ratelimit.TokenBucket{Rate: 10, Period: rig.Never, MaxReserved: ratelimit.Tokens(5)}).For("k")
	rig.Take(t, l.Autocommit(pool), key.Count(9))
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		all, _, err := l.RateLimitMany(ctx, tx, [][]ratelimit.Request{{key.Count(4).OrReserve()}, {key.Count(3).OrReserve()}})
		var denied *ratelimit.DeniedError
		if !errors.As(all.Err(), &denied) || denied.MaxReserved != 5 {
			t.Errorf("%v, want a denial with a MaxReserved of 5", all.Err())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
