package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What is remembered is answered without the database: here it is closed.
func TestADenialIsRememberedUntilItsTokensCome(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	clock := newClock()
	v := limiter(t, ratelimit.Config{RememberDenials: true, Clock: clock.now}).Autocommit(pool)
	for _, shards := range []int{1, 3} {
		limit := ratelimit.MustDefine(map[int]string{1: "one", 3: "three"}[shards], ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second}, ratelimit.Shards(shards))
		take := func(want bool, r ratelimit.Request) ratelimit.Result {
			t.Helper()
			res, err := v.RateLimit(t.Context(), r)
			if err != nil || res.OK != want {
				t.Fatalf("%d shards: got %+v and %v, want granted %v", shards, res, err, want)
			}
			return res
		}
		take(true, limit.For("k").Count(10))
		denied := take(false, limit.For("k").Count(5))
		if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO away`); err != nil {
			t.Fatal(err)
		}
		clock.add(time.Second)
		again := take(false, limit.For("k").Count(5))
		if !again.RetryAt.Equal(denied.RetryAt) || again.At.Sub(denied.At) != time.Second || again.Limit != denied.Limit || again.Key != "k" {
			t.Errorf("%+v after %+v", again, denied)
		}
		for what, r := range map[string]ratelimit.Request{
			"count": limit.For("k").Count(6), "key": limit.For("other").Count(5), "reserve": limit.For("k").Count(5).OrReserve(),
			"rule": limit.For("k").Count(5).Rule(ratelimit.TokenBucket{Rate: 11, Period: 10 * time.Second}),
		} {
			if res, err := v.RateLimit(t.Context(), r); err == nil {
				t.Errorf("another %s: answered from memory: %+v", what, res)
			}
		}
		if res, err := v.CheckRateLimit(t.Context(), limit.For("k").Count(5)); err == nil {
			t.Errorf("a check was answered from memory: %+v", res)
		}
		if _, err := pool.Exec(t.Context(), `ALTER TABLE away RENAME TO weir_balance`); err != nil {
			t.Fatal(err)
		}
		clock.add(denied.RetryAt.Sub(clock.now()))
		take(true, limit.For("k").Count(5))
	}
}

// A reset by the same limiter ends it at once, one elsewhere does not: that is what it costs.
func TestAResetElsewhereIsNotSeenByWhoRemembers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	mine := limiter(t, ratelimit.Config{RememberDenials: true}).Autocommit(pool)
	other := limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 1, Period: never})
	for range 2 {
		if _, err := mine.RateLimit(t.Context(), limit.For("k")); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.ResetRateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	if res, err := mine.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if err := mine.ResetRateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	if res, err := mine.RateLimit(t.Context(), limit.For("k")); err != nil || !res.OK {
		t.Errorf("after its own reset: %+v, %v", res, err)
	}
}

// BenchmarkDenyRemembered is a call that is denied from memory.
func BenchmarkDenyRemembered(b *testing.B) {
	pool, l := pgtest.Pool(b), limiter(b, ratelimit.Config{RememberDenials: true})
	limit := ratelimit.MustDefine("bench", ratelimit.TokenBucket{Rate: 1, Period: never})
	tx, err := pool.BeginTx(b.Context(), pgx.TxOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback(b.Context()) }()
	for range 2 {
		if _, err := l.RateLimit(b.Context(), tx, limit.For("k")); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if res, err := l.RateLimit(b.Context(), tx, limit.For("k")); err != nil || res.OK {
			b.Fatal(res, err)
		}
	}
}
