package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

var fourShards = ratelimit.MustDefine("fourShards", ratelimit.TokenBucket{Rate: 40, Period: rig.Century,
	MaxReserved: ratelimit.Tokens(4)}, ratelimit.Shards(4))

const noLocksOnCitus = "it has no advisory locks to tell which shards are held, and a call may wait for one"

// fillShards gives each of the four shards so many tokens.
func fillShards(t *testing.T, pool *pgxpool.Pool, r ratelimit.Request, tokens ...float64) {
	t.Helper()
	rig.Take(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), r) // makes them
	if _, err := pool.Exec(t.Context(), `UPDATE weir_balance b SET value = s.value
		FROM (SELECT shard, ($3::float8[])[(row_number() OVER (ORDER BY shard))::integer] AS value FROM weir_balance
			WHERE name = $1 AND key = $2 AND shard > 0) s
		WHERE b.name = $1 AND b.key = $2 AND b.shard = s.shard`, r.Limit().Name(), r.Key(), tokens); err != nil {
		t.Fatal(err)
	}
}

// decide decides a request in a transaction of InTx, and returns how many trips that took.
func decide(
	t *testing.T, l *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel, r ratelimit.Request,
) (res ratelimit.Result, trips int) {
	t.Helper()
	seen.decided = nil
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.InTxOptions(within, pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) (err error) {
		res, err = l.RateLimit(ctx, tx, r)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return res, seen.last(t).Trips
}

// deniedAtTheNextLook requires that a request is denied for a moment, in no more trips than it takes to
// look, to try what was seen, and to look again.
func deniedAtTheNextLook(
	t *testing.T, l *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel, r ratelimit.Request,
) {
	t.Helper()
	res, trips := decide(t, l, seen, pool, level, r)
	if res.OK || trips > 3 || res.RetryAfter() > 100*time.Millisecond {
		t.Errorf("granted %v in %d trips, retry after %v; want a denial in 3 for at most 100 ms",
			res.OK, trips, res.RetryAfter())
	}
}

// decided decides a request in a transaction of InTx, meanwhile.
func decided(
	l *ratelimit.Limiter, pool *pgxpool.Pool, level pgx.TxIsoLevel, r ratelimit.Request,
) <-chan answer {
	ended := make(chan answer, 1)
	go func() {
		var res ratelimit.Result
		err := l.InTxOptions(context.Background(), pool, pgx.TxOptions{IsoLevel: level},
			func(ctx context.Context, tx pgx.Tx) (err error) {
				res, err = l.RateLimit(ctx, tx, r)
				return err
			})
		ended <- answer{res, err}
	}()
	return ended
}

func rollback(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// eachHolder has tokens taken by an open transaction of the same process as the call that follows,
// or of another.
func eachHolder(
	t *testing.T, test func(t *testing.T, here, there *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel),
) {
	t.Parallel()
	pgtest.OneServer(t, noLocksOnCitus)
	for _, level := range rig.Levels {
		for _, process := range []string{"this", "another"} {
			t.Run(fmt.Sprintf("%s/HeldBy%sProcess", level, process), func(t *testing.T) {
				t.Parallel()
				var seen watcher
				here := rig.Limiter(t, ratelimit.Config{Observer: &seen})
				there := here
				if process == "another" {
					there = rig.Limiter(t, ratelimit.Config{})
				}
				test(t, here, there, &seen, pgtest.Pool(t), level)
			})
		}
	}
}

// A call that may not wait is denied when it looks again, if there is nothing but what it has just
// lost to a transaction that is still open. It does not try that again and again. A call that
// reserves takes from another shard.
func TestACallThatHasLostAllThatThereIsIsDeniedAtTheNextLook(t *testing.T) {
	eachHolder(t, func(
		t *testing.T, here, there *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	) {
		r := fourShards.For("k")
		fillShards(t, pool, r, 0, 0, 10, 0)
		holder := rig.Begin(t, pool, pgx.ReadCommitted)
		takeOK(t, first(there.RateLimit(t.Context(), holder, r.Count(8))))
		deniedAtTheNextLook(t, here, seen, pool, level, r.Count(5))
		if res, _ := decide(t, here, seen, pool, level, r.OrReserve()); !res.OK || res.RunAt.IsZero() {
			t.Errorf("a reservation: %+v", res)
		}
		rollback(t, holder)
		if res, _ := decide(t, here, seen, pool, level, r.Count(5)); !res.OK {
			t.Errorf("once it has rolled back: %+v", res)
		}
	})
}

// beforeLook does something once, before a transaction that has lost a shard looks again.
type beforeLook struct {
	afterBatch
	then func()
}

func (b *beforeLook) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	if then := b.then; then != nil && d.Batch.QueuedQueries[0].SQL == "ROLLBACK" {
		b.then = nil
		then()
	}
	return ctx
}

// A call that has lost a shard tries whatever else the next look finds: another shard that has
// enough by then, the same one if its holder has committed and left enough, or what the other shards
// have together.
func TestACallThatHasLostAShardTriesWhatElseThereIs(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, noLocksOnCitus)
	for name, c := range map[string]struct {
		others float64
		then   func(t *testing.T, pool *pgxpool.Pool, holder pgx.Tx)
	}{
		"AnotherShard": {0, func(t *testing.T, pool *pgxpool.Pool, _ pgx.Tx) {
			rig.Exec(t, pool, `UPDATE weir_balance SET value = 6 WHERE name = 'fourShards' AND shard > 0 AND value = 0`)
		}},
		"TheSameAfterACommit": {0, func(t *testing.T, _ *pgxpool.Pool, holder pgx.Tx) { rig.Commit(t, holder) }},
		"TheOthersTogether":   {2, func(*testing.T, *pgxpool.Pool, pgx.Tx) {}},
	} {
		for _, level := range rig.Levels {
			t.Run(name+"/"+string(level), func(t *testing.T) {
				t.Parallel()
				var seen watcher
				var tracer beforeLook
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &tracer })
				l, r := rig.Limiter(t, ratelimit.Config{Observer: &seen}), fourShards.For("k")
				fillShards(t, pool, r, c.others, c.others, 10, c.others)
				holder := rig.Begin(t, pool, pgx.ReadCommitted)
				takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).RateLimit(t.Context(), holder, r.Count(4))))
				tracer.then = func() { c.then(t, pool, holder) }
				if res, trips := decide(t, l, &seen, pool, level, r.Count(5)); !res.OK || tracer.then != nil {
					t.Errorf("after %d trips: %+v; it has lost nothing: %v", trips, res, tracer.then != nil)
				}
			})
		}
	}
}

// holdThree has another process take from three shards, and leaves its transaction open.
func holdThree(t *testing.T, pool *pgxpool.Pool, r ratelimit.Request) (holder pgx.Tx) {
	t.Helper()
	holder = rig.Begin(t, pool, pgx.ReadCommitted)
	l := rig.Limiter(t, ratelimit.Config{})
	for range 3 {
		takeOK(t, first(l.RateLimit(t.Context(), holder, r)))
	}
	return holder
}

// If most shards have room for a reservation, but other transactions hold them all, the call waits
// for one of them.
func TestACallThatMayWaitWaitsForTheShardThatItHasLost(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, noLocksOnCitus)
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l, r := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{}), fourShards.For("k")
			fillShards(t, pool, r, 10, 10, 10, -1) // each may owe 1
			holder := holdThree(t, pool, r.Count(8))
			ended := decided(l, pool, level, r.Count(5).OrReserve())
			until(t, func() bool { return len(ended) > 0 || rig.IsWaitedFor(t, pool, holder) })
			rollback(t, holder)
			if got := <-ended; got.err != nil || !got.res.OK {
				t.Errorf("%+v, %v", got.res, got.err)
			}
		})
	}
}

// So it does if it may only lock one of them. It has locked the third shard, which had less than this
// process knew, so it may not wait for those before that.
func TestACallThatMayWaitWaitsForTheShardThatItMayLock(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, noLocksOnCitus)
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l, r := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{}), fourShards.For("k").OrReserve()
			fillShards(t, pool, r, -1, -1, 10, -1)                                  // each may owe 1
			takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), r.Count(0)))) // learns that
			fillShards(t, pool, r, 10, 10, -1, 10)
			holder := holdThree(t, pool, r.Count(8))
			waiter := rig.Begin(t, pool, level)
			ended := make(chan answer, 1)
			go func() {
				res, err := l.RateLimit(context.WithoutCancel(t.Context()), waiter, r.Count(5))
				ended <- answer{res, err}
			}()
			until(t, func() bool { return len(ended) > 0 || rig.IsWaitedFor(t, pool, holder) })
			rollback(t, holder)
			if got := <-ended; got.err != nil || !got.res.OK {
				t.Errorf("%+v, %v", got.res, got.err)
			}
		})
	}
}

// If only one shard has room for a reservation, and another transaction holds it, the call is denied
// at its next look, and waits for no shard.
func TestAReservationThatHasLostTheLastOfTheRoomIsDeniedAtTheNextLook(t *testing.T) {
	eachHolder(t, func(
		t *testing.T, here, there *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	) {
		r := fourShards.For("k").OrReserve()
		fillShards(t, pool, r, -1, -1, 10, -1) // each may owe 1
		holder := rig.Begin(t, pool, pgx.ReadCommitted)
		takeOK(t, first(there.RateLimit(t.Context(), holder, r.Count(8))))
		deniedAtTheNextLook(t, here, seen, pool, level, r.Count(5))
		rollback(t, holder)
		if res, _ := decide(t, here, seen, pool, level, r.Count(5)); !res.OK {
			t.Errorf("once it has rolled back: %+v", res)
		}
	})
}

// While a transaction that has gathered tokens from several shards is open, a call that would have
// to gather, too, is denied at its next look, also if it would do so from other shards.
func TestOneCallerGathersAtATime(t *testing.T) {
	eachHolder(t, func(
		t *testing.T, here, there *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	) {
		r := fourShards.For("k").Count(4)
		fillShards(t, pool, r, 2, 2, 0, 0)
		gatherer := rig.Begin(t, pool, pgx.ReadCommitted)
		takeOK(t, first(there.RateLimit(t.Context(), gatherer, r)))
		rig.Exec(t, pool, `UPDATE weir_balance SET value = 3 WHERE name = 'fourShards' AND shard > 0 AND value = 0`)
		deniedAtTheNextLook(t, here, seen, pool, level, r)
		rollback(t, gatherer)
		if res, _ := decide(t, here, seen, pool, level, r); !res.OK {
			t.Errorf("once it has rolled back: %+v", res)
		}
	})
}

// So it is with the last of what may be reserved, if no shard alone has room for a call: who comes
// meanwhile is denied at its next look, and waits for no shard.
func TestOneCallerGathersAtATimeWhatMayBeReserved(t *testing.T) {
	eachHolder(t, func(
		t *testing.T, here, there *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	) {
		r := fourShards.For("k").Count(1).OrReserve()
		fillShards(t, pool, r, -0.5, -0.5, -0.5, -0.5) // each may owe 1
		gatherer := rig.Begin(t, pool, pgx.ReadCommitted)
		takeOK(t, first(there.RateLimit(t.Context(), gatherer, r)))
		deniedAtTheNextLook(t, here, seen, pool, level, r)
		if res, _ := decide(t, here, seen, pool, level, r.Count(0.5)); !res.OK {
			t.Errorf("what one of the other shards has room for: %+v", res)
		}
		rollback(t, gatherer)
		if res, _ := decide(t, here, seen, pool, level, r); !res.OK {
			t.Errorf("once it has rolled back: %+v", res)
		}
	})
}

// A reservation that has to gather the last of the room is denied at its next look, too, if another
// transaction holds one of the shards. It does not try that one again.
func TestAReservationThatGathersTheLastOfTheRoomTriesOnce(t *testing.T) {
	eachHolder(t, func(
		t *testing.T, here, there *ratelimit.Limiter, seen *watcher, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	) {
		r := fourShards.For("k").OrReserve()
		fillShards(t, pool, r, -0.5, -0.5, -0.5, -0.5) // each may owe 1
		holder := rig.Begin(t, pool, pgx.ReadCommitted)
		takeOK(t, first(there.RateLimit(t.Context(), holder, r.Count(0.5))))
		deniedAtTheNextLook(t, here, seen, pool, level, r.Count(2))
		rollback(t, holder)
		if res, _ := decide(t, here, seen, pool, level, r.Count(2)); !res.OK {
			t.Errorf("once it has rolled back: %+v", res)
		}
	})
}
