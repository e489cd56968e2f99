package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

var scarce = ratelimit.MustDefine("scarce", ratelimit.TokenBucket{Rate: 1, Period: rig.Never}).For("k")

// twice has a request denied once, so that the next denial is expected.
func twice(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) {
	t.Helper()
	for _, want := range []bool{true, false} {
		if res, err := l.Autocommit(pool).RateLimit(t.Context(), r); err != nil || res.OK != want {
			t.Fatal(res, err)
		}
	}
}

func TestWhoIsDeniedAsExpectedBeginsNoTransaction(t *testing.T) {
	t.Parallel()
	var count trips
	pool := pgtest.Pool(t, count.through, func(c *pgxpool.Config) { c.MaxConns = 1 })
	l := rig.Limiter(t, ratelimit.Config{})
	twice(t, l, pool, scarce)
	deny := func() {
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			res, err := l.RateLimit(ctx, tx, scarce)
			return errors.Join(err, res.Err())
		})
		if !errors.Is(err, ratelimit.ErrDenied) {
			t.Fatal(err)
		}
	}
	deny() // prepares
	if n := count.of(deny); n != 1 {
		t.Errorf("%d round trips", n)
	}
}

// Whoever goes on after it has the denial within the transaction: it is looked at again, ahead of
// whatever comes.
func TestWhoGoesOnAfterADenialIsDeniedWithinTheTransaction(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	plenty := ratelimit.MustDefine("plenty", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}).For("k")
	shards := ratelimit.MustDefine("scarceShards", ratelimit.TokenBucket{Rate: 2, Period: rig.Never},
		ratelimit.Shards(2)).For("k").Count(2)
	for name, goOn := range map[string]func(ctx context.Context, l *ratelimit.Limiter, tx pgx.Tx) error{
		"Query": func(ctx context.Context, _ *ratelimit.Limiter, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT 1`)
			return err
		},
		"Take": func(ctx context.Context, l *ratelimit.Limiter, tx pgx.Tx) error {
			res, err := l.RateLimit(ctx, tx, plenty)
			return errors.Join(err, res.Err())
		},
		"Savepoint": func(ctx context.Context, _ *ratelimit.Limiter, tx pgx.Tx) error {
			sp, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return sp.Commit(ctx)
		},
		"SwallowsTheError": func(ctx context.Context, _ *ratelimit.Limiter, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT 1`); errors.Is(err, ratelimit.ErrInvalid) { // never
				return err
			}
			return nil
		},
	} {
		for _, r := range []ratelimit.Request{scarce, shards} {
			t.Run(name+"/"+r.Limit().Name(), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				l := rig.Limiter(t, ratelimit.Config{})
				for _, reset := range []bool{false, true} {
					twice(t, l, pool, r)
					runs, granted := 0, false
					err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
						runs++
						res, err := l.RateLimit(ctx, tx, r)
						if err != nil {
							return err
						}
						granted = res.OK
						if reset && runs == 1 { // by another process, which this one does not hear of
							if err := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).
								ResetRateLimit(t.Context(), r); err != nil {
								t.Error(err)
							}
						}
						return goOn(ctx, l, tx)
					})
					wantRuns := 1
					if reset {
						wantRuns = 2
					}
					if err != nil || runs != wantRuns || granted != reset {
						t.Errorf("reset %v: %d runs, granted %v, %v", reset, runs, granted, err)
					}
					if err := l.Autocommit(pool).ResetRateLimit(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// If nobody expected the denial, it was read in the transaction, which has the row locked. Others
// cannot change the balance then, so a callback that goes on runs once.
func TestWhoGoesOnAfterADenialThatNobodyExpectedRunsOnce(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a caller waits for a lock of one server")
	limit := ratelimit.MustDefine("unexpected", ratelimit.TokenBucket{Rate: 10, Period: rig.Century}).For("k")
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			l, other := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			takeOK(t, first(other.RateLimit(t.Context(), limit.Count(3))))
			runs := 0
			err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
				func(ctx context.Context, tx pgx.Tx) error {
					runs++
					if res, err := l.RateLimit(ctx, tx, limit.Count(8)); err != nil || res.OK {
						t.Errorf("%+v, %v", res, err)
						return err
					}
					short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					if res, err := other.RateLimit(short, limit); err == nil {
						t.Errorf("another one has changed the balance: %+v", res)
					}
					_, err := tx.Exec(ctx, `SELECT 1`)
					return err
				})
			if err != nil || runs != 1 {
				t.Errorf("%d runs, %v", runs, err)
			}
		})
	}
}

// A take of shards that is denied may begin its transaction again, but not if a denial was looked at
// again in it: the transaction would see more than that denial did.
func TestADenialIsOfTheSnapshotThatTheTransactionKeeps(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	shards := ratelimit.MustDefine("shards", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(2)).For("k")
	for range 2 { // the second call knows the shards that the first has made
		takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), shards)))
	}
	rig.Exec(t, pool, `UPDATE weir_balance SET value = 0 WHERE shard > 0`) // as another process might
	twice(t, l, pool, scarce)
	runs, granted, seen := 0, false, 0
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		res, err := l.RateLimit(ctx, tx, scarce)
		if err != nil {
			return err
		}
		granted = res.OK
		if res, err := l.RateLimit(ctx, tx, shards); err != nil || res.OK {
			t.Errorf("%+v, %v", res, err)
			return err
		}
		if runs == 1 { // by another process, which this one does not hear of
			if err := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).
				ResetRateLimit(t.Context(), scarce); err != nil {
				t.Error(err)
			}
			rig.Exec(t, pool, `INSERT INTO done VALUES (1)`)
		}
		return tx.QueryRow(ctx, `SELECT count(*) FROM done`).Scan(&seen)
	})
	if err != nil || granted != (seen > 0) {
		t.Errorf("granted %v, and sees %d rows that were written after the reset: %d runs, %v", granted, seen, runs, err)
	}
}

// A callback that goes on after a denial runs once more at the most, however often others take from
// the same balance. At READ COMMITTED, and if a limit of the call has shards, it runs once.
func TestADenialOfABusyBalanceRunsOnceMore(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 10, Period: rig.Century}
	row := ratelimit.MustDefine("busy", rule).For("k")
	shards := ratelimit.MustDefine("busy", rule, ratelimit.Shards(2)).For("k")
	free := ratelimit.MustDefine("free", rule, ratelimit.Shards(2)).For("k")
	shut := ratelimit.MustDefine("shut", rule).For("k")
	for name, c := range map[string]struct {
		busy   ratelimit.Request
		others []ratelimit.Request
		runs   int // above READ COMMITTED
	}{
		"a row":                           {row, nil, 2},
		"shards":                          {shards, nil, 1},
		"a row, beside shards":            {row, []ratelimit.Request{free}, 1},
		"a row, beside one that was shut": {row, []ratelimit.Request{shut}, 2},
	} {
		// the transaction sees the balance that has denied it, except on Citus
		keeps := name == "a row" && !pgtest.Citus()
		for _, level := range rig.Levels {
			t.Run(name+"/"+string(level), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				l, other := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
				takeOK(t, first(other.RateLimit(t.Context(), c.busy.Count(3))))
				for _, r := range c.others {
					rig.Take(t, l.Autocommit(pool), r)
				}
				rig.Exec(t, pool, `UPDATE weir_balance SET value = '-Infinity' WHERE name = 'shut'`) // by hand
				call := append([]ratelimit.Request{c.busy.Count(8)}, c.others...)
				if res, err := l.Autocommit(pool).RateLimit(t.Context(), call...); err != nil || res.OK {
					t.Fatal(res, err)
				}
				want := c.runs
				if level == pgx.ReadCommitted {
					want = 1
				}
				runs := 0
				err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
					func(ctx context.Context, tx pgx.Tx) error {
						runs++
						res, err := l.RateLimit(ctx, tx, call...)
						if err != nil || res.OK || !rig.Near(res.Outcomes[0].Value, float64(8-runs)) {
							t.Errorf("%+v, %v", res, err)
						}
						takeOK(t, first(other.RateLimit(t.Context(), c.busy)))
						if _, err := tx.Exec(ctx, `SELECT 1`); err != nil || !keeps || level == pgx.ReadCommitted {
							return err
						}
						s, err := l.Value(ctx, tx, c.busy)
						if err != nil || !rig.Near(s.Value, res.Outcomes[0].Value) {
							t.Errorf("%+v, %v; it was denied with %v", s, err, res.Outcomes[0].Value)
						}
						return err
					})
				if err != nil || runs != want {
					t.Errorf("%d runs, want %d, %v", runs, want, err)
				}
			})
		}
	}
}

// A denial is looked at again as of its own time: tokens that have flowed in since make nobody run
// again.
func TestTokensThatFlowInAfterADenialRunNobodyAgain(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 10, Period: time.Hour}
	for name, r := range map[string]ratelimit.Request{
		"a row":  ratelimit.MustDefine("flows", rule).For("k").Count(10),
		"shards": ratelimit.MustDefine("flows", rule, ratelimit.Shards(2)).For("k").Count(10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
			twice(t, l, pool, r)
			runs := 0
			err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				runs++
				res, err := l.RateLimit(ctx, tx, r)
				if err != nil || res.OK {
					t.Errorf("%+v, %v", res, err)
					return err
				}
				clock.Add(res.RetryAfter() + time.Second)
				_, err = tx.Exec(ctx, `SELECT 1`)
				return err
			})
			if err != nil || runs != 1 {
				t.Errorf("%d runs, %v", runs, err)
			}
		})
	}
}

// A limit that has got shards since it denied a call is looked at again, also if another limit of the
// call had shards all along: its row is closed, which says nothing.
func TestALimitThatGetsShardsAfterADenialIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	rule := ratelimit.TokenBucket{Rate: 2, Period: rig.Never}
	grows := ratelimit.MustDefine("grows", rule).For("k").Count(2)
	grown := ratelimit.MustDefine("grows", rule, ratelimit.Shards(2)).For("k")
	free := ratelimit.MustDefine("free", rule, ratelimit.Shards(2)).For("k")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rig.Take(t, l.Autocommit(pool), free)
	twice(t, l, pool, grows)
	runs, granted := 0, false
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		res, err := l.RateLimit(ctx, tx, grows, free)
		if err != nil {
			return err
		}
		if granted = res.OK; runs == 1 { // by another process, which this one does not hear of
			if err := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).
				ResetRateLimit(t.Context(), grown); err != nil {
				t.Error(err)
			}
		}
		_, err = tx.Exec(ctx, `SELECT 1`)
		return err
	})
	if err != nil || runs != 2 || !granted {
		t.Errorf("%d runs, granted %v, %v", runs, granted, err)
	}
}

// afterBatch does something once, when the first batch has been answered.
type afterBatch struct {
	once sync.Once
	do   func()
}

func (a *afterBatch) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (a *afterBatch) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (a *afterBatch) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (a *afterBatch) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (a *afterBatch) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {
	if a.do != nil {
		a.once.Do(a.do)
	}
}

// A call that is expected to be denied, and finds tokens, takes them. Nobody runs again because
// others have taken some between its look and its take, and left enough.
func TestTokensThatHaveComeAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			var meddle afterBatch
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &meddle })
			l, other := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			limit := ratelimit.MustDefine("came", ratelimit.TokenBucket{Rate: 10, Period: rig.Century}).For("k")
			takeOK(t, first(other.RateLimit(t.Context(), limit.Count(3))))
			if res, err := l.Autocommit(pool).RateLimit(t.Context(), limit.Count(8)); err != nil || res.OK {
				t.Fatal(res, err)
			}
			if err := other.ResetRateLimit(t.Context(), limit); err != nil {
				t.Fatal(err)
			}
			meddled := false
			meddle.do = func() {
				meddled = true
				takeOK(t, first(other.RateLimit(t.Context(), limit)))
			}
			runs := 0
			err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
				func(ctx context.Context, tx pgx.Tx) error {
					runs++
					return rig.Granted(l.RateLimit(ctx, tx, limit.Count(8)))
				})
			if err != nil || runs != 1 || !meddled {
				t.Errorf("%d runs, %v, somebody came between: %v", runs, err, meddled)
			}
			if s, err := other.Value(t.Context(), limit); err != nil || !rig.Near(s.Value, 1) {
				t.Errorf("%+v, %v, want 1 left", s, err)
			}
		})
	}
}
