package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// classes are a limit of one row and one of several, on which calls of two classes are made.
func classes(debt float64) map[string]ratelimit.Limit {
	rule := ratelimit.TokenBucket{Rate: 12, Period: rig.Never, MaxReserved: ratelimit.Tokens(debt)}
	return map[string]ratelimit.Limit{
		"row":    ratelimit.MustDefine("classes", rule),
		"shards": ratelimit.MustDefine("classesOfShards", rule, ratelimit.Shards(4)),
	}
}

// By every way of calling, each class of reservations has a MaxReserved of its own: those of the
// lower class are denied first, and those of the higher one still run up their debt.
func TestByEveryWayEachClassHasItsOwnMaxReserved(t *testing.T) {
	t.Parallel()
	for name, limit := range classes(12) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
				ctx, critical := t.Context(), limit.For("k").OrReserve()
				batch := critical.Rule(ratelimit.TokenBucket{Rate: 12, Period: rig.Never, MaxReserved: ratelimit.Tokens(4)})
				takeOK(t, first(v.RateLimit(ctx, critical.Count(12)))) // all that there is
				for range 4 {
					takeOK(t, first(v.RateLimit(ctx, batch.Count(1))))
				}
				if res, err := v.RateLimit(ctx, batch.Count(1)); err != nil || res.OK || res.RetryAt.IsZero() {
					t.Errorf("beyond its own MaxReserved: %+v, %v", res, err)
				}
				for range 8 {
					takeOK(t, first(v.RateLimit(ctx, critical.Count(1))))
				}
				if res, err := v.RateLimit(ctx, critical.Count(1)); err != nil || res.OK {
					t.Errorf("beyond the limit's MaxReserved: %+v, %v", res, err)
				}
			})
		})
	}
}

// By every way of calling, a floor together with a reservation is an error that says so, and takes
// nothing.
func TestByEveryWayAFloorWithAReservationIsRefused(t *testing.T) {
	t.Parallel()
	for name, limit := range classes(12) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
				for what, r := range map[string]ratelimit.Request{
					"OrReserve": limit.For("k").Leave(2).OrReserve(),
					"Within":    limit.For("k").Leave(2).Within(time.Second),
					"OnCredit":  limit.For("k").Leave(2).OnCredit(),
				} {
					_, err := v.RateLimit(t.Context(), r)
					var invalid *ratelimit.InvalidError
					if !errors.As(err, &invalid) || invalid.Field != "Leave" || errors.Is(err, ratelimit.ErrDenied) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if there := left(t, v, limit.For("k")); there != 12 {
					t.Errorf("%v are left", there)
				}
			})
		})
	}
}

// By every way of calling, what counts is what all shards together are left with, also where the
// one that a call takes from has more than its part.
func TestByEveryWayAShareIsLeftByAllShards(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("leftByAll", ratelimit.TokenBucket{Rate: 12, Period: rig.Never}, ratelimit.Shards(2))
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		takeOK(t, first(v.RateLimit(t.Context(), limit.For("k").Count(6)))) // a whole shard
		if res, err := v.RateLimit(t.Context(), limit.For("k").Count(3).Leave(4)); err != nil || res.OK {
			t.Errorf("3 of 6, of which 4 are to be left: %+v, %v", res, err)
		}
		takeOK(t, first(v.RateLimit(t.Context(), limit.For("k").Count(2).Leave(4))))
	})
}

// A call that leaves something keeps each shard's part of it. So two calls of different processes
// do not leave less together, though neither has seen what the other takes.
func TestCallersOfShardsTogetherLeaveWhatTheyShould(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		count float64 // of a call, which leaves eight
		times int     // that another process calls first
	}{"of both shards": {4, 1}, "of one shard": {2, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leaveTogether(t, tc.count, tc.times)
		})
	}
}

func leaveTogether(t *testing.T, count float64, times int) {
	t.Helper()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("leftOfTwo", ratelimit.TokenBucket{Rate: 12, Period: rig.Never}, ratelimit.Shards(2))
	here, there := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	takeOK(t, first(there.RateLimit(t.Context(), limit.For("k").Count(0)))) // makes the rows

	request := limit.For("k").Count(count).Leave(8) // four of each shard
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	meddled := new(sync.Once)
	res, err := here.RateLimit(t.Context(), beforeTake{meddling{tx, meddled, func() {
		for range times {
			takeOK(t, first(there.RateLimit(t.Context(), request)))
		}
	}}}, request)
	if err != nil || res.OK || res.RetryAt.IsZero() {
		t.Errorf("granted what another call has taken: %+v, %v", res, err)
	}
	meddled.Do(func() { t.Error("nothing was taken in between") })
	rig.Commit(t, tx)
	if is := left(t, there, limit.For("k")); is < 8 || is > 8.1 {
		t.Errorf("%v are left of 12", is)
	}
}

// beforeTake is meddling that also does it before a take from one row alone.
type beforeTake struct{ meddling }

func (b beforeTake) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "INSERT INTO") {
		b.first.Do(b.do)
	}
	return b.Tx.Query(ctx, sql, args...)
}
