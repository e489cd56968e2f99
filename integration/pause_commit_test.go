package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestAPauseRollsBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("rolled", oneASecond)
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	a := l.Autocommit(pool)
	wantPaused := func(paused bool) {
		t.Helper()
		if res, err := a.RateLimit(t.Context(), limit.For("k").Count(0)); err != nil || res.OK == paused {
			t.Errorf("%+v and %v, want paused %v", res, err, paused)
		}
	}
	undone := errors.New("undone")
	for _, level := range rig.Levels {
		err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
			func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Pause(ctx, tx, time.Hour, limit.For("k")); err != nil {
					return err
				}
				if res, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil || res.OK {
					t.Errorf("%+v and %v in the transaction that paused", res, err)
				}
				return undone
			})
		if !errors.Is(err, undone) {
			t.Fatal(err)
		}
		wantPaused(false)
	}
	if err := a.Pause(t.Context(), time.Hour, limit.For("k")); err != nil {
		t.Fatal(err)
	}
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(l.Resume(ctx, tx, limit.For("k")), undone)
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	wantPaused(true)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	if err := rig.SQL(l, db, false).Resume(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	wantPaused(false)
}

// However takes and pauses meet: once a pause has committed nothing is granted that was asked for
// after it and decided before its end, by the database's clock.
func TestConcurrentTakesAreNeverGrantedWithinAPause(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	for name, rule := range map[string]ratelimit.Rule{
		"Bucket": ratelimit.TokenBucket{Rate: 1e6, Period: time.Second},
		"Window": ratelimit.FixedWindow{Rate: 1e6, Period: 10 * time.Millisecond},
	} {
		limit := ratelimit.MustDefine("storm", rule)
		for _, w := range rig.Ways {
			if w.Name == "RepeatableRead" || w.Name == "Portable" {
				continue // as Serializable
			}
			t.Run(name+"/"+w.Name, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 6 })
				v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable}), pool)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()

				var mu sync.Mutex
				var shut time.Time // until when, by the last pause that has committed
				var granted, denied int
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						for ctx.Err() == nil {
							mu.Lock()
							closed := shut
							mu.Unlock()
							res, err := v.RateLimit(ctx, limit.For("k"))
							if err != nil {
								if ctx.Err() == nil {
									t.Error(err)
								}
								return
							}
							mu.Lock()
							if res.OK {
								granted++
							} else {
								denied++
							}
							mu.Unlock()
							if res.OK && res.At.Before(closed) {
								t.Errorf("granted at %v, in a pause until %v", res.At, closed)
							}
						}
					})
				}
				both := func() bool {
					mu.Lock()
					defer mu.Unlock()
					return granted > 0 && denied > 0
				}
				for i, end := 0, time.Now().Add(time.Minute); i < 15 || !both() && time.Now().Before(end); i++ {
					// On a slow machine a short pause is over before it is committed.
					d := 10 * time.Millisecond << max(0, min(i-14, 7))
					if err := v.Pause(t.Context(), d, limit.For("k")); err != nil {
						t.Fatal(err)
					}
					s, err := v.Value(t.Context(), limit.For("k"))
					if err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					shut = s.PausedUntil
					mu.Unlock()
					until(t, func() bool { return databaseNow(t, pool).After(s.PausedUntil.Add(5 * time.Millisecond)) })
				}
				cancel()
				wg.Wait()
				if granted == 0 || denied == 0 {
					t.Errorf("%d granted and %d denied: the test should see both", granted, denied)
				}
			})
		}
	}
}
