package integration

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// rawVerbs takes in transactions that the caller begins, and runs none of them again, except those that
// Citus has rolled back to end a deadlock.
type rawVerbs struct {
	rig.TxVerbs
	l    *ratelimit.Limiter
	pool *pgxpool.Pool
}

func (v rawVerbs) RateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	for {
		err = pgx.BeginTxFunc(ctx, v.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			res, err = v.l.RateLimit(ctx, tx, requests...)
			return err
		})
		if !pgtest.Citus() || rig.SQLState(err) != "40P01" {
			return res, err
		}
	}
}

// crowds are the ways, and transactions that nobody runs again.
var crowds = append([]rig.Way{{
	Name: "Raw",
	Verbs: func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) rig.Verbs {
		return rawVerbs{rig.Tx(l, pool, pgx.ReadCommitted), l, pool}
	},
}}, rig.Crowded()...)

// deadlocks counts those that a pool was told of, also where the transaction is then run again.
type deadlocks struct{ n atomic.Int64 }

func (d *deadlocks) watch(c *pgxpool.Config) { c.ConnConfig.Tracer = d }

func (d *deadlocks) note(err error) {
	if rig.SQLState(err) == "40P01" {
		d.n.Add(1)
	}
}

func (d *deadlocks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (d *deadlocks) TraceQueryEnd(_ context.Context, _ *pgx.Conn, e pgx.TraceQueryEndData) {
	d.note(e.Err)
}

func (d *deadlocks) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (d *deadlocks) TraceBatchQuery(_ context.Context, _ *pgx.Conn, e pgx.TraceBatchQueryData) {
	d.note(e.Err)
}

func (d *deadlocks) TraceBatchEnd(_ context.Context, _ *pgx.Conn, e pgx.TraceBatchEndData) {
	d.note(e.Err)
}

// eachCrowd lets nobody meet deadlocks, except on Citus, where each way runs again what a deadlock has
// ended.
func eachCrowd(t *testing.T, test func(t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool)) {
	for _, w := range crowds {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			var d deadlocks
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 }, d.watch)
			d.n.Store(0) // without those of making the tables, which pgtest runs again
			cfg := ratelimit.Config{Portable: w.Portable}
			if !pgtest.Citus() {
				// Nobody queues for shards. On a slow machine a caller may lose to others more often than
				// the default allows.
				cfg.MaxAttempts = 1000
			}
			open := func() rig.Verbs { return w.Verbs(t, rig.Limiter(t, cfg), pool) }
			test(t, open(), open(), pool)
			if n := d.n.Load(); n > 0 && !pgtest.Citus() {
				t.Errorf("%d deadlocks: %s", n, circles(t, pool))
			}
		})
	}
}

// circles are the deadlocks of a server, as its log tells of them: who waited for what.
func circles(t testing.TB, pool *pgxpool.Pool) (lines string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(line, E'\n'), '') FROM regexp_split_to_table(
			pg_read_file(current_setting('data_directory') || '/../server.log'), E'\n') AS line
		WHERE line ~ 'deadlock detected|Process [0-9]+(:| waits)'`).Scan(&lines); err != nil {
		return err.Error() // a server of which the tests know only the address
	}
	return lines
}

// sumOf is what the open rows of a key have, of a limit into which nothing flows.
func sumOf(t testing.TB, pool *pgxpool.Pool, r ratelimit.Limit, key string) (sum float64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT coalesce(sum(least(value, capacity)), 'NaN') FROM weir_balance
		WHERE name = $1 AND key = $2 AND shard >= 0 AND value > '-Infinity'`, r.Name(), key).Scan(&sum); err != nil {
		t.Fatal(err)
	}
	return sum
}

// However many come for however much, each token is granted once and none is left lying in a shard.
func TestEveryTokenOfManyShardsIsGrantedOnce(t *testing.T) {
	t.Parallel()
	const capacity, shards = 320, 32
	limit := ratelimit.MustDefine("crowd", ratelimit.TokenBucket{Rate: capacity, Period: rig.Century},
		ratelimit.Shards(shards))
	eachCrowd(t, func(t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool) {
		var mu sync.Mutex
		granted := 0.0
		var wg sync.WaitGroup
		for caller := range 20 {
			v := here
			if caller%2 == 1 {
				v = there
			}
			wg.Go(func() {
				for count, tries := float64(1+rand.IntN(5)), 0; count >= 1; {
					res, err := v.RateLimit(t.Context(), limit.For("k").Count(count))
					switch {
					case err != nil:
						t.Error(err)
						return
					case res.OK:
						mu.Lock()
						granted += count
						mu.Unlock()
						count = float64(1 + rand.IntN(5))
					case res.RetryAfter() <= 100*time.Millisecond && tries < 300: // others were taking
						tries++
						time.Sleep(res.RetryAfter())
					default:
						count--
					}
				}
			})
		}
		wg.Wait()
		if left := sumOf(t, pool, limit, "k"); math.Abs(granted+left-capacity) > 1e-4 || left > 0.001 {
			t.Errorf("%v granted, and %v left of %v", granted, left, capacity)
		}
	})
}

// A window that is asked to have more shards than it can be divided into grants all of its tokens
// in each window, and no more.
func TestEachWindowOfManyShardsGrantsAllOfIt(t *testing.T) {
	t.Parallel()
	rule := ratelimit.FixedWindow{Rate: 100, Period: time.Hour}
	limit := ratelimit.MustDefine("hundred", rule, ratelimit.Shards(32))
	eachTwice(t, rig.Crowded(), func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, _ *pgxpool.Pool) {
		for window := range 3 {
			var granted atomic.Int64
			var wg sync.WaitGroup
			for caller := range 8 {
				wg.Go(func() {
					for {
						res, err := []rig.Verbs{here, there}[caller%2].RateLimit(t.Context(), limit.For("k"))
						switch {
						case err != nil:
							t.Error(err)
							return
						case res.OK:
							granted.Add(1)
						case res.RetryAfter() > 100*time.Millisecond: // not for others who are taking
							return
						}
					}
				})
			}
			wg.Wait()
			if n := granted.Load(); n != 100 {
				t.Errorf("window %d: %d were granted of 100", window, n)
			}
			clock.Set(rig.WindowEnd(rig.NumbersOf(rule), limit.For("k"), clock.Now()))
		}
	})
}

// However often its shards change meanwhile, no rounding has the last token of a window denied, or
// one granted that is none.
func TestAWindowGrantsAllOfItWhileItsShardsChange(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("fifty", ratelimit.FixedWindow{Rate: 50, Period: rig.Never, Start: time.Unix(0, 0)})
	v := l.Autocommit(pool)
	for round := range 20 {
		request, left := limit.For(strconv.Itoa(round)), 50.0
		for left > 0 {
			n := min(left, float64(1+rand.IntN(6))/2)
			if res, err := v.RateLimit(t.Context(), request.Count(n)); err != nil || !res.OK {
				t.Fatalf("round %d: %v of the %v tokens that are left: %+v, %v", round, n, left, res, err)
			}
			left -= n
			if rand.IntN(3) > 0 {
				continue
			}
			if err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				return l.Reshard(ctx, tx, []int{1, 2, 5, 10, 25}[rand.IntN(5)], request)
			}); err != nil {
				t.Fatal(err)
			}
		}
		if res, err := v.RateLimit(t.Context(), request.Count(0.5)); err != nil || res.OK {
			t.Fatalf("round %d: with none left: %+v, %v", round, res, err)
		}
	}
}

// With reservations and gifts among them callers meet no error, and nobody waits for anybody in a
// circle.
func TestCallersOfManyShardsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("circle", ratelimit.TokenBucket{Rate: 30, Period: rig.Century,
		MaxReserved: ratelimit.Tokens(30)}, ratelimit.Shards(6))
	eachCrowd(t, func(t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool) {
		var mu sync.Mutex
		held := 0.0
		var wg sync.WaitGroup
		for caller := range 16 {
			v := here
			if caller%2 == 1 {
				v = there
			}
			wg.Go(func() {
				for range 15 {
					n := float64(1 + rand.IntN(9))
					r := limit.For("k").Count(n)
					if rand.IntN(3) == 0 {
						r = r.OrReserve()
					}
					res, err := v.RateLimit(t.Context(), r)
					if err != nil {
						t.Error(err)
						return
					}
					if !res.OK {
						continue
					}
					mu.Lock()
					held += n
					mu.Unlock()
					if rand.IntN(5) > 0 {
						if err := v.GiveBack(t.Context(), res); err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						held -= n
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if left := sumOf(t, pool, limit, "k"); math.Abs(held+left-30) > 1e-4 {
			// a shard that is full gains nothing by what is given to all alike: none may be gained,
			// though
			if held+left > 30+1e-4 {
				t.Errorf("%v held, and %v left of 30", held, left)
			}
		}
	})
}

// The first to come make the shards, once.
func TestFirstUsesOfALimitWithShards(t *testing.T) {
	t.Parallel()
	const n = 16
	eachCrowd(t, func(t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool) {
		for round := range rig.Rounds(t, 2) {
			for _, shards := range []int{3, 16, 40} {
				limit := ratelimit.MustDefine(fmt.Sprint("first", shards), ratelimit.TokenBucket{
					Rate: float64(12 * shards), Period: rig.Century,
				}, ratelimit.Shards(shards))
				key := fmt.Sprint(round)
				start := make(chan struct{})
				var wg sync.WaitGroup
				for caller := range n {
					v := here
					if caller%2 == 1 {
						v = there
					}
					wg.Go(func() {
						<-start
						for range 100 {
							res, err := v.RateLimit(t.Context(), limit.For(key).Count(1.5))
							if err == nil && res.OK {
								return
							}
							if err != nil || res.RetryAfter() > 100*time.Millisecond {
								t.Errorf("%d shards: granted %v, %v", shards, res.OK, res.Err())
								return
							}
							time.Sleep(res.RetryAfter()) // it met others at each try: it is told to come again
						}
						t.Errorf("%d shards: not granted in a hundred calls", shards)
					})
				}
				close(start)
				wg.Wait()
				if left := sumOf(t, pool, limit, key); math.Abs(left-float64(12*shards)+1.5*n) > 1e-4 {
					t.Errorf("%d shards: %v left, want %v", shards, left, float64(12*shards)-1.5*n)
				}
			}
		}
	})
}
