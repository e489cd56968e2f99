package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A reset forgives what was held before it. A settlement that comes after it gives nothing back,
// and charges what it must.
func TestASettlementRacesAReset(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("reset", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	for _, level := range rig.CrowdedLevels() {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			v := rig.Tx(l, pool, level)
			for i := range 40 {
				k := limit.For(fmt.Sprint(i))
				r := takeOK(t, first(v.RateLimit(t.Context(), k.Count(10)))).Reservation()
				used := float64(4 + 10*(i%2))
				var wg sync.WaitGroup
				wg.Go(func() {
					if ok, err := v.Settle(t.Context(), r, k.Count(used)); err != nil || !ok {
						t.Error(ok, err)
					}
				})
				wg.Go(func() {
					if err := v.ResetRateLimit(t.Context(), k); err != nil {
						t.Error(err)
					}
				})
				wg.Wait()
				s, err := v.Value(t.Context(), k)
				if excess := max(0, used-10); err != nil ||
					!sameTokens(s.Value, 100) && !sameTokens(s.Value, 100-excess) {
					t.Errorf("%v left (%v) of 100 after a reset and an excess of %v", s.Value, err, excess)
				}
			}
		})
	}
}

// predicateLocks are those that the transaction holds on what a settlement writes.
func predicateLocks(t *testing.T, tx pgx.Tx) (n int) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid()
		AND relation IN ('weir_balance'::regclass, 'weir_balance_pkey'::regclass, 'weir_settled'::regclass, 'weir_settled_pkey'::regclass)`).
		Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSettlementsLeaveNoPredicateLock(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("locks", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	var r []*ratelimit.Reservation
	for i := range 8 {
		res := takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(),
			limit.For(fmt.Sprint(i)).Count(3), limit.Global())))
		held := res.Reservation()
		r = append(r, &held)
	}
	if ok, err := l.Autocommit(pool).Release(t.Context(), *r[0]); err != nil || !ok {
		t.Fatal(ok, err)
	}
	rig.Exec(t, pool, `ANALYZE weir_balance, weir_settled`)
	for name, settle := range map[string]func(ctx context.Context, tx pgx.Tx) (bool, error){
		"below": func(ctx context.Context, tx pgx.Tx) (bool, error) {
			return l.Settle(ctx, tx, *r[1], limit.For("1").Count(2))
		},
		"above": func(ctx context.Context, tx pgx.Tx) (bool, error) {
			return l.Settle(ctx, tx, *r[2], limit.For("2").Count(5))
		},
		"equal":   func(ctx context.Context, tx pgx.Tx) (bool, error) { return l.Settle(ctx, tx, *r[3]) },
		"release": func(ctx context.Context, tx pgx.Tx) (bool, error) { return l.Release(ctx, tx, *r[4]) },
		"renew":   func(ctx context.Context, tx pgx.Tx) (bool, error) { return true, l.Renew(ctx, tx, r[5], r[6]) },
		"again": func(ctx context.Context, tx pgx.Tx) (bool, error) {
			ok, err := l.Settle(ctx, tx, *r[0])
			return !ok, err
		},
	} {
		tx := rig.Begin(t, pool, pgx.Serializable)
		if ok, err := settle(t.Context(), tx); err != nil || !ok {
			t.Fatal(name, ok, err)
		}
		if n := predicateLocks(t, tx); n != 0 {
			t.Errorf("%s left %d predicate locks", name, n)
		}
		rig.Commit(t, tx)
	}
}

func TestSettlementsOfUnrelatedReservationsDoNotAbortEachOther(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("unrelated", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	for _, analyse := range []bool{false, true} {
		t.Run(fmt.Sprintf("Analysed=%v", analyse), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			var held [8][]ratelimit.Reservation
			for caller := range held {
				for range 30 {
					res := takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(),
						limit.For(fmt.Sprint(caller)).Count(3))))
					held[caller] = append(held[caller], res.Reservation())
				}
			}
			if analyse {
				rig.Exec(t, pool, `ANALYZE weir_balance, weir_settled`)
			}
			var wg sync.WaitGroup
			var runs atomic.Int64
			for caller, all := range held {
				wg.Go(func() {
					for i, r := range all {
						err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
							runs.Add(1)
							if ok, err := l.Settle(ctx, tx, r,
								limit.For(fmt.Sprint(caller)).Count(float64(i%6))); err != nil ||
								!ok {
								return errors.Join(err, fmt.Errorf("settled %v", ok))
							}
							_, err := tx.Exec(ctx, `SELECT pg_sleep(0.001)`)
							return err
						})
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			if n := runs.Load(); n != 8*30 {
				t.Errorf("240 settlements took %d runs", n)
			}
		})
	}
}

// Settlements of one row queue, too.
func TestSettlementsOfAContendedRowQueueRatherThanFailEachOther(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("contended", ratelimit.TokenBucket{Rate: 1e5, Period: rig.Century})
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 })
	l := rig.Limiter(t, ratelimit.Config{})
	var held [16][]ratelimit.Reservation
	for caller := range held {
		for range 15 {
			held[caller] = append(held[caller],
				takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.For("k").Count(3)))).Reservation())
		}
	}
	var runs, commits atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for _, all := range held {
		wg.Go(func() {
			for _, r := range all {
				err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					runs.Add(1)
					if _, err := l.Settle(ctx, tx, r, limit.For("k").Count(1)); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
				commits.Add(1)
			}
		})
	}
	wg.Wait()
	aborts := float64(runs.Load()-commits.Load()) / float64(commits.Load())
	t.Logf("%.3f aborts a commit", aborts)
	// A row is contended for 2.5 seconds. On a slow machine all may fail once in each of them.
	if most := 0.3 + 16*float64(time.Since(began)/(2500*time.Millisecond))/240; aborts > most {
		t.Errorf("%.2f aborts a commit, want at most %v", aborts, most)
	}
	wantValue(t, l, pool, limit.For("k"), 1e5-16*15)
}
