package integration

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

type cancelling struct {
	pgx.Tx
	cancel func()
}

func (c cancelling) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return cancelResults{c.Tx.SendBatch(ctx, b), c.cancel}
}

type cancelResults struct {
	pgx.BatchResults
	cancel func()
}

func (c cancelResults) Close() error { err := c.BatchResults.Close(); c.cancel(); return err }

// A call whose context ends when a part of it was taken keeps none of it.
func TestAllOrNoneThoughTheContextEndsBetweenTrips(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	x := ratelimit.MustDefine("x", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), x.For("b").Count(10))))
	l = rig.Limiter(t, ratelimit.Config{})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context()) // as by a short timeout for the limiter alone
	res, err := l.RateLimit(ctx, cancelling{tx, cancel}, x.For("a").Count(4), x.For("b").Count(4))
	if err == nil && res.OK {
		t.Fatalf("granted: %+v", res)
	}
	if err := tx.Commit(t.Context()); err != nil { // the caller fails open
		t.Logf("cannot commit: %v", err)
	}
	wantValue(t, l, pool, x.For("a"), 10)
}

// afterTake does something as soon as a take was answered.
type afterTake struct{ then atomic.Pointer[func()] }

type isTake struct{}

func (*afterTake) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, isTake{}, strings.HasPrefix(d.SQL, "INSERT INTO"))
}

func (a *afterTake) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if f := a.then.Load(); f != nil && ctx.Value(isTake{}) == true {
		(*f)()
	}
}

// database/sql sends one statement at a time.
func TestAllOrNoneThoughTheContextEndsBetweenStatements(t *testing.T) {
	t.Parallel()
	tracer := &afterTake{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer })
	l := rig.Limiter(t, ratelimit.Config{})
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	x := ratelimit.MustDefine("x", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := func() { cancel() }
	tracer.then.Store(&stop)
	if res, err := l.InSQL(tx).RateLimit(ctx, x.For("a").Count(4),
		x.For("b").Count(4)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v and %v, want the context's end", res, err)
	}
	tracer.then.Store(nil)
	if err := tx.Commit(); err != nil {
		t.Logf("cannot commit: %v", err) // then nothing was kept either
	}
	wantValue(t, l, pool, x.For("a"), 10)
}
