package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// A limit can be reset by any request for it.
func TestAResetDoesNotMindCounts(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	a := l.Autocommit(pool)
	small := ratelimit.MustDefine("small", ratelimit.TokenBucket{Rate: 0.5, Period: time.Hour})
	zero := ratelimit.MustDefine("zero",
		ratelimit.TokenBucket{Rate: 5, Period: time.Hour, Capacity: ratelimit.Tokens(0)})
	one := ratelimit.MustDefine("one", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	if err := a.ResetRateLimit(t.Context(), small.For("k")); err != nil {
		t.Error(err)
	}
	if err := a.ResetRateLimit(t.Context(), zero.For("k")); err != nil {
		t.Error(err)
	}
	if err := a.ResetRateLimit(t.Context(), one.For("k"), one.For("k")); err != nil {
		t.Error(err)
	}
	if err := a.ResetRateLimit(t.Context(), one.For("k"), one.For("k").Count(0).OrReserve()); err != nil {
		t.Error(err)
	}
}

// A transaction inside one inside the first waits for it all the same.
func TestNestingIsSeenOverAnotherPool(t *testing.T) {
	t.Parallel()
	p1, p2, l := pgtest.Pool(t), pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	err := l.InTx(t.Context(), p1, func(ctx context.Context, _ pgx.Tx) error {
		return l.InTx(ctx, p2, func(ctx context.Context, _ pgx.Tx) error {
			return l.InTx(ctx, p1, func(context.Context, pgx.Tx) error { return nil })
		})
	})
	if !errors.Is(err, ratelimit.ErrNested) {
		t.Error(err)
	}
}

// A nil pointer is refused like nil.
func TestATypedNilIsNoPool(t *testing.T) {
	t.Parallel()
	l := rig.Limiter(t, ratelimit.Config{})
	defer func() {
		if r := recover(); r != nil {
			t.Error(r)
		}
	}()
	var c *pgx.Conn
	t.Log(l.InTx(t.Context(), c, func(context.Context, pgx.Tx) error { return nil }))
}

// A Limiter that was declared, and not made, is told so, whatever is asked of it.
func TestTheZeroLimiterIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	good := rig.Limiter(t, ratelimit.Config{})
	r := ratelimit.MustDefine("x", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	res := takeOK(t, first(good.Autocommit(pool).RateLimit(t.Context(), r)))
	refused := func(verb string, err error) {
		t.Helper()
		if !errors.Is(err, ratelimit.ErrInvalid) ||
			!strings.Contains(err.Error(), "Limiter is the zero one: want one made by New") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	for _, w := range rig.Ways {
		v := w.Verbs(t, new(ratelimit.Limiter), pool)
		refused(w.Name+" take", second(v.RateLimit(t.Context(), r)))
		refused(w.Name+" check", second(v.CheckRateLimit(t.Context(), r)))
		refused(w.Name+" reset", v.ResetRateLimit(t.Context(), r))
		refused(w.Name+" give back", v.GiveBack(t.Context(), res))
		_, err := v.Value(t.Context(), r)
		refused(w.Name+" value", err)
		refused(w.Name+" pause", v.Pause(t.Context(), time.Second, r))
		refused(w.Name+" resume", v.Resume(t.Context(), r))
		_, err = v.Settle(t.Context(), res.Reservation())
		refused(w.Name+" settle", err)
		_, err = v.Release(t.Context(), res.Reservation())
		refused(w.Name+" release", err)
	}
	var zero ratelimit.Limiter
	refused("InTx", zero.InTx(t.Context(), pool, func(context.Context, pgx.Tx) error { return nil }))
	_, err := zero.Lease(pool, r, ratelimit.LeaseConfig{})
	refused("Lease", err)
	_, err = zero.Prune(t.Context(), pool, ratelimit.PruneConfig{})
	refused("Prune", err)
	_, err = zero.Autocommit(pool).Wait(t.Context(), r)
	refused("Wait", err)
	refused("ResetKey", zero.Autocommit(pool).ResetKey(t.Context(), "k"))
}

// A grant beside an error would be taken for one.
func TestAFailedCallLeavesTheZeroResult(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rig.Exec(t, pool, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	rig.Exec(t, pool, `CREATE CONSTRAINT TRIGGER no AFTER INSERT OR UPDATE ON weir_balance DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()`)
	x := ratelimit.MustDefine("x", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	res, err := l.Autocommit(pool).RateLimit(t.Context(), x.For("1"), x.For("2"))
	if err == nil {
		t.Fatal("no error")
	}
	if res.OK {
		t.Errorf("granted, and %v", err)
	}
	res, err = l.Autocommit(pool).RateLimit(t.Context(), x.For("1"))
	if err == nil || res.OK {
		t.Errorf("granted, and %v", err)
	}
}

// That one token is there says nothing of five.
func TestASmallerGrantDoesNotForgetALargerDenial(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("flood", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	a := l.Autocommit(pool)
	takeOK(t, first(a.RateLimit(t.Context(), k.Count(8))))
	for i := range 3 {
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		takeOK(t, first(l.CheckRateLimit(t.Context(), tx, k)))
		if res, err := l.RateLimit(t.Context(), tx, k.Count(5)); err != nil || res.OK {
			t.Fatal(res, err)
		}
		var xid *string
		if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned()::text`).Scan(&xid); err != nil {
			t.Fatal(err)
		}
		if i > 0 && xid != nil {
			t.Errorf("denial %d wrote", i)
		}
		_ = tx.Rollback(t.Context())
	}
}

// Above READ COMMITTED a read may be older than a reset; a take finds that out.
func TestARememberedDenialIsNotBelievedOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	other := rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	a := l.Autocommit(pool)
	takeOK(t, first(a.RateLimit(t.Context(), k.Count(10))))
	if res, err := a.RateLimit(t.Context(), k); err != nil || res.OK {
		t.Fatal(res, err)
	}
	n := 0
	var res ratelimit.Result
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		n++
		if _, err := tx.Exec(ctx, "SELECT 1 FROM pg_class LIMIT 1"); err != nil {
			return err
		}
		if n == 1 {
			if err := other.Autocommit(pool).ResetRateLimit(context.Background(), k); err != nil {
				return err
			}
		}
		res, err = l.RateLimit(ctx, tx, k)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK {
		t.Errorf("denied until %v (%v), %d runs, though it was full when the call was made",
			res.RetryAt, res.RetryAfter(), n)
	}
}

// Queues are tables of the runner's schema; another limiter's rows do without.
func TestALimiterOfAnotherSchemaInsideInTx(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "one of its limiters has no tables")
	pool := pgtest.Bare(t)
	name := "weir_eyes_other"
	if err := schema.Migrate(t.Context(), pool, schema.In(name)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "DROP SCHEMA "+name+" CASCADE") })
	runner := rig.Limiter(t, ratelimit.Config{})
	l := rig.Limiter(t, ratelimit.Config{Schema: name})
	x := ratelimit.MustDefine("x", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	n := 0
	err := runner.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if n++; n == 1 {
			if _, err := tx.Exec(ctx, "SELECT 1 FROM pg_class LIMIT 1"); err != nil {
				return err
			}
			if _, err := l.Autocommit(pool).RateLimit(context.Background(), x.For("k")); err != nil {
				return err
			}
		}
		_, err := l.RateLimit(ctx, tx, x.For("k"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Nothing is written by looking.
func TestChecksWorkInReadOnlyTransactions(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadOnly,
		DeferrableMode: pgx.Deferrable}, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.Value(ctx, tx, k); err != nil {
			return err
		}
		_, err := l.CheckRateLimit(ctx, tx, k)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The idiom of defer tx.Rollback ends the transaction that InTx would commit.
func TestARollbackInTheCallbackKeepsNothing(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		defer func() { _ = tx.Rollback(ctx) }()
		_, err := l.RateLimit(ctx, tx, k)
		return err
	})
	t.Log(err)
	err = l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.RateLimit(ctx, tx, k)
		if err == nil {
			err = tx.Commit(ctx)
		}
		return err
	})
	t.Log(err)
	wantValue(t, l, pool, k, 9)
}

// A Value without a TS is of no time.
func TestAStateNeedsItsTime(t *testing.T) {
	t.Parallel()
	k := ratelimit.MustDefine("state", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	d, err := ratelimit.Decide(k.Count(10), ratelimit.State{Value: 3}, rig.Noon)
	if err == nil && d.OK {
		t.Errorf("10 of 3 granted: %+v", d)
	}
}
