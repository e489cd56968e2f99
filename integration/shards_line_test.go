package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// Each shard has a line of its own. What callers reserve comes a few windows before or after it
// would with one balance, as each chooses the best of three shards; and no window has more than its
// tokens.
func TestTheLinesOfAWindowWithShardsAreNearThatOfOneBalance(t *testing.T) {
	t.Parallel()
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, _ *pgxpool.Pool) {
		const all, bound = 60, 4 * time.Hour
		rule := ratelimit.FixedWindow{Rate: all, Period: time.Hour, Start: clock.Now()}
		for _, n := range []int{2, 3, 5, 12} {
			for _, part := range []float64{1, 2} {
				many := ratelimit.MustDefine(fmt.Sprint("line", n, part), rule, ratelimit.Shards(n))
				one := ratelimit.MustDefine(fmt.Sprint("one", n, part), rule)
				windows := map[time.Time]float64{}
				for i := range 2 * n {
					v, count := []rig.Verbs{here, there}[i%2], all/float64(n)/part
					a := takeOK(t, first(v.RateLimit(t.Context(), many.For("k").Count(count).OrReserve()))).RunAt
					b := takeOK(t, first(v.RateLimit(t.Context(), one.For("k").Count(count).OrReserve()))).RunAt
					if a.IsZero() {
						a = clock.Now()
					}
					if b.IsZero() {
						b = clock.Now()
					}
					if windows[a] += count; windows[a] > all+slack || a.Sub(b).Abs() > bound {
						t.Errorf("%d shards, take %d: in line until %v, in a window of %v, and with one balance until %v",
							n, i, a, windows[a], b)
					}
				}
			}
		}
	})
}

// What is charged beyond a reservation leaves no shard with tokens while another owes: they would
// be granted to the next who comes, ahead of the line and beyond what one balance has.
func TestExcessIsADebtOfAllShards(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("excess", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(2))
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, _ *weirtest.Clock, _ *pgxpool.Pool) {
		r := limit.For("k")
		res, err := here.RateLimit(t.Context(), r.Count(5))
		if err != nil || !res.OK {
			t.Fatal(res.OK, err)
		}
		if res, err := there.RateLimit(t.Context(), r.Count(0)); err != nil || !res.OK { // its books have a full shard
			t.Fatal(res.OK, err)
		}
		if _, err := here.Settle(t.Context(), res.Reservation(), r.Count(9)); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, here, r, 1)
		for _, v := range []rig.Verbs{there, here} {
			if res, err := v.RateLimit(t.Context(), r.Count(1.5)); err != nil || res.OK {
				t.Errorf("granted 1.5 of 1: %v, %v", res.OK, err)
			}
		}
		if res, err := there.RateLimit(t.Context(), r.Count(1)); err != nil || !res.OK {
			t.Errorf("denied 1 of 1: %v, %v", res.OK, err)
		}
	})
}

// Tokens of a window end with it, also where the line had moved up before they were taken.
func TestAShardsTokensOfAnEndedWindowAreNoGift(t *testing.T) {
	t.Parallel()
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, _ *pgxpool.Pool) {
		limit := ratelimit.MustDefine("ended", ratelimit.FixedWindow{Rate: 10, Period: time.Hour,
			Start: clock.Now()}, ratelimit.Shards(4))
		r := limit.For("k")
		first, err := here.RateLimit(t.Context(), r.Count(10))
		if err != nil || !first.OK {
			t.Fatal(first.OK, err)
		}
		ahead, err := here.RateLimit(t.Context(), r.Count(10).OrReserve())
		if err != nil || !ahead.OK {
			t.Fatal(ahead.OK, err)
		}
		if _, err := here.Settle(t.Context(), ahead.Reservation(), r.Count(0)); err != nil { // moves the line
			t.Fatal(err)
		}
		clock.Add(time.Hour)
		late, err := there.RateLimit(t.Context(), r.Count(10))
		if err != nil || !late.OK {
			t.Fatal(late.OK, err)
		}
		clock.Add(time.Hour)
		if res, err := here.RateLimit(t.Context(), r.Count(9)); err != nil || !res.OK {
			t.Fatal(res.OK, err)
		}
		if err := there.GiveBack(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, here, r, 1)
	})
}

// What comes back goes to the shard that it was taken from, also if that owes and another has
// tokens: each has a line of its own.
func TestWhatComesBackGoesToItsShard(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, pool *pgxpool.Pool) {
		limit := ratelimit.MustDefine("back", ratelimit.TokenBucket{Rate: 20, Period: rig.Century}, ratelimit.Shards(2))
		rig.Take(t, v, limit.For("k")) // makes the shards
		var taken []ratelimit.Result
		for _, n := range []float64{3, 8, 10, 10} {
			res, err := v.RateLimit(t.Context(), limit.For("k").Count(n).OrReserve())
			if err := rig.Granted(res, err); err != nil {
				t.Fatal(err)
			}
			taken = append(taken, res)
		}
		rows := func() (values [2]float64) {
			t.Helper()
			if err := pool.QueryRow(t.Context(),
				`SELECT min(value) FILTER (WHERE shard = 1048577), min(value) FILTER (WHERE shard = 1048578)
				FROM weir_balance WHERE key = 'k' AND shard > 0`).Scan(&values[0], &values[1]); err != nil {
				t.Fatal(err)
			}
			return values
		}
		elsewhere := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool) // in a process that has taken nothing
		for _, res := range taken {
			want := rows()
			for _, k := range res.Reservation().Takes {
				var shard int32
				text, err := json.Marshal(k)
				if err == nil {
					err = json.Unmarshal(text, &[]any{nil, nil, nil, &shard})
				}
				if err != nil {
					t.Fatal(err)
				}
				want[shard-1048577] += k.Count
			}
			if err := elsewhere.GiveBack(t.Context(), res); err != nil {
				t.Fatal(err)
			}
			if got := rows(); math.Abs(got[0]-want[0]) > 1e-6 || math.Abs(got[1]-want[1]) > 1e-6 {
				t.Errorf("the shards have %v, want %v", got, want)
			}
		}
	})
}

// meddling does something just before the first batch of a transaction is sent.
type meddling struct {
	pgx.Tx
	first *sync.Once
	do    func()
}

func (m meddling) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	m.first.Do(m.do)
	return m.Tx.SendBatch(ctx, b)
}

// What is reserved is taken from the shards as they were seen. If they are reset before that, no
// shard is left with tokens that the limit as a whole has not.
func TestAResetBetweenLookAndReservationLeavesNothingOver(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	here, there := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("reset", ratelimit.TokenBucket{Rate: 10, Period: rig.Never,
		MaxReserved: ratelimit.Tokens(10)}, ratelimit.Shards(5))
	k := limit.For("k")
	takeOK(t, first(here.Autocommit(pool).RateLimit(t.Context(), k.Count(3)))) // of two shards
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	meddled := false
	res, err := here.RateLimit(t.Context(), meddling{tx, new(sync.Once), func() {
		meddled = true
		if err := there.Autocommit(pool).ResetRateLimit(t.Context(), k); err != nil {
			t.Error(err)
		}
	}}, k.Count(10).OrReserve())
	if err != nil || !res.OK || !res.RunAt.IsZero() || !meddled {
		t.Fatalf("10 of 10: %+v, %v, meddled %v", res, err, meddled)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if res, err := here.Autocommit(pool).RateLimit(t.Context(), k); err != nil || res.OK {
			t.Fatalf("an eleventh: %+v, %v", res, err)
		}
	}
}
