package integration

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
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

// The books of a limit into which nothing flows balance: what was used and what is left are its
// capacity, whatever many callers take, reserve, give back, settle, release, roll back and pause at
// once, by every way of calling, while the limit gets other numbers of shards.
//
// What it leaves out: a limit with shards that are in debt keeps their number here, and any other
// gets another number only while nothing is to be given back of it.
func TestEveryTokenIsUsedOrLeftAtOnce(t *testing.T) {
	t.Parallel()
	const capacity = 480
	for name, c := range map[string]struct {
		rule   ratelimit.Rule
		shards int  // at the least
		debts  bool // callers reserve, and settle more than they took
	}{
		"BucketOfOneRow":       {ratelimit.TokenBucket{Rate: capacity, Period: rig.Never}, 1, true},
		"WindowOfOneRow":       {ratelimit.FixedWindow{Rate: capacity, Period: rig.Never}, 1, true},
		"BucketOfShards":       {ratelimit.TokenBucket{Rate: capacity, Period: rig.Never}, 2, false},
		"WindowOfShards":       {ratelimit.FixedWindow{Rate: capacity, Period: rig.Never}, 2, false},
		"BucketOfShardsInDebt": {ratelimit.TokenBucket{Rate: capacity, Period: rig.Never}, 6, true},
		"WindowOfShardsInDebt": {ratelimit.FixedWindow{Rate: capacity, Period: rig.Never}, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// InTx runs again until then.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 24 })
			clock := weirtest.NewClock(rig.Noon) // stands still
			limit := ratelimit.MustDefine("books", c.rule, ratelimit.Shards(c.shards))
			cfg := ratelimit.Config{Clock: clock.Now}
			l := rig.Limiter(t, cfg)
			all := make([]*bookkeeper, 0, 10)
			var layout sync.RWMutex
			for i := range cap(all) {
				w := crowds[i%len(crowds)]
				// What is portable does not share a limit with callers who use advisory locks.
				for w.Portable {
					w = crowds[rand.IntN(len(crowds))]
				}
				if i%2 == 1 {
					l = rig.Limiter(t, cfg)
				}
				all = append(all, &bookkeeper{l: l, v: w.Verbs(t, l, pool), pool: pool, limit: limit,
					debts: c.debts, layout: &layout})
			}
			for round := range rig.Rounds(t, 2) {
				key := string(rune('a' + round%26))
				auto := all[0].l.Autocommit(pool)
				if err := auto.ResetRateLimit(ctx, limit.For(key)); err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				var reshards, callers sync.WaitGroup
				if !c.debts {
					reshards.Go(func() { all[0].reshard(ctx, t, key, done) })
				}
				for _, b := range all {
					callers.Go(func() { b.work(ctx, t, key, 30) })
				}
				callers.Wait()
				close(done)
				reshards.Wait()
				used := 0.0
				for _, b := range all {
					used += b.used
					b.used = 0
				}
				state, err := auto.Value(ctx, limit.For(key))
				if err != nil || math.Abs(used+state.Value-capacity) > slack {
					t.Fatalf("round %d: %v used and %v left (%v), of %v",
						round, used, state.Value, err, capacity)
				}
			}
		})
	}
}

// bookkeeper is one caller, who knows what it has used.
type bookkeeper struct {
	l      *ratelimit.Limiter
	v      rig.Verbs
	pool   *pgxpool.Pool
	limit  ratelimit.Limit
	debts  bool
	layout *sync.RWMutex // held for reading while something is to be given back

	kept []keptGrant
	used float64
}

type keptGrant struct {
	res ratelimit.Result
	n   float64
}

func (b *bookkeeper) work(ctx context.Context, t *testing.T, key string, calls int) {
	k := b.limit.For(key)
	for range calls {
		n := float64(1 + rand.IntN(12))
		var err error
		switch draw := rand.IntN(12); {
		case draw < 2: // for good
			var res ratelimit.Result
			if res, err = b.v.RateLimit(ctx, k.Count(n)); err == nil && res.OK {
				b.used += n
			}
		case draw < 7: // to be given back, some of it or all
			err = b.keep(ctx, k, n)
		case draw < 8:
			_, err = b.v.CheckRateLimit(ctx, k.Count(n))
		case draw < 9:
			err = b.undo(ctx, k.Count(n))
		case draw < 10:
			err = b.savepoints(ctx, k, n)
		case draw < 11:
			if err = b.v.Pause(ctx, time.Minute, k); err == nil {
				err = b.v.Resume(ctx, k)
			}
		default:
			err = b.end(ctx, k)
		}
		for err == nil && len(b.kept) > 4 {
			err = b.end(ctx, k)
		}
		if err != nil {
			t.Error(err)
			break
		}
	}
	for len(b.kept) > 0 {
		if err := b.end(ctx, k); err != nil {
			t.Error(err)
		}
	}
}

func (b *bookkeeper) keep(ctx context.Context, k ratelimit.Request, n float64) error {
	if len(b.kept) == 0 {
		b.layout.RLock()
	}
	if k = k.Count(n); b.debts && rand.IntN(2) == 0 {
		n *= 8
		k = k.Count(n).OrReserve()
	}
	res, err := b.v.RateLimit(ctx, k)
	if err == nil && res.OK {
		b.kept = append(b.kept, keptGrant{res, n})
	}
	if len(b.kept) == 0 {
		b.layout.RUnlock()
	}
	return err
}

// end ends one of the grants that are kept.
func (b *bookkeeper) end(ctx context.Context, k ratelimit.Request) error {
	if len(b.kept) == 0 {
		return nil
	}
	i := rand.IntN(len(b.kept))
	g := b.kept[i]
	b.kept = append(b.kept[:i], b.kept[i+1:]...)
	ended, used, err := true, 0.0, error(nil)
	switch rand.IntN(4) {
	case 0:
		err = b.v.GiveBack(ctx, g.res)
	case 1:
		ended, err = b.v.Release(ctx, g.res.Reservation())
	default:
		used = float64(rand.IntN(int(g.n) + 1))
		if b.debts && rand.IntN(3) == 0 {
			used = g.n + float64(rand.IntN(5))
		}
		ended, err = b.v.Settle(ctx, g.res.Reservation(), k.Count(used))
	}
	b.used += used
	if len(b.kept) == 0 {
		b.layout.RUnlock()
	}
	if err == nil && !ended {
		return errors.New("a reservation was settled before")
	}
	return err
}

// undo takes in a transaction that is rolled back.
func (b *bookkeeper) undo(ctx context.Context, r ratelimit.Request) error {
	levels := rig.CrowdedLevels()
	opts := pgx.TxOptions{IsoLevel: levels[rand.IntN(len(levels))]}
	err := b.l.InTxOptions(ctx, b.pool, opts, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := b.l.RateLimit(ctx, tx, r); err != nil {
			return err
		}
		return errUndo
	})
	if errors.Is(err, errUndo) {
		return nil
	}
	return err
}

// savepoints takes for good after it has taken in a savepoint that is rolled back.
func (b *bookkeeper) savepoints(ctx context.Context, k ratelimit.Request, n float64) error {
	took := false
	levels := rig.CrowdedLevels()
	opts := pgx.TxOptions{IsoLevel: levels[rand.IntN(len(levels))]}
	err := b.l.InTxOptions(ctx, b.pool, opts, func(ctx context.Context, tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := b.l.RateLimit(ctx, inner, k.Count(3)); err != nil {
			return err
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		res, err := b.l.RateLimit(ctx, tx, k.Count(n))
		took = res.OK
		return err
	})
	if err == nil && took {
		b.used += n
	}
	return err
}

// reshard gives the limit other numbers of shards until done.
func (b *bookkeeper) reshard(ctx context.Context, t *testing.T, key string, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(20 * time.Millisecond):
		}
		b.layout.Lock()
		opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
		err := b.l.InTxOptions(ctx, b.pool, opts, func(ctx context.Context, tx pgx.Tx) error {
			return b.l.Reshard(ctx, tx, []int{2, 3, 4, 8}[rand.IntN(4)], b.limit.For(key))
		})
		b.layout.Unlock()
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// errUndo makes a transaction roll back.
var errUndo = errors.New("undo")
