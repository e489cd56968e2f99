package integration

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// interrupted runs calls in transactions of database/sql, which sends one statement at a time.
type interrupted struct {
	tracer *afterTake
	pool   *pgxpool.Pool
	db     *sql.DB
}

func interrupts(t *testing.T) interrupted {
	t.Helper()
	tracer := &afterTake{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer })
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return interrupted{tracer, pool, db}
}

// after runs a call whose context ends as soon as its nth INSERT was answered, in a transaction
// that commits whatever the call returns.
func (i *interrupted) after(
	t *testing.T, n int64, call func(context.Context, *sql.Tx) error,
) error {
	t.Helper()
	tx, err := i.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context()) // as by a short timeout for the limiter alone
	defer cancel()
	var left atomic.Int64
	left.Store(n)
	stop := func() {
		if left.Add(-1) == 0 {
			cancel()
		}
	}
	i.tracer.then.Store(&stop)
	failed := call(ctx, tx)
	i.tracer.then.Store(nil)
	if err := tx.Commit(); err != nil { // the caller fails open
		t.Logf("cannot commit: %v", err) // then nothing was kept
	}
	return failed
}

// A call that makes the shards of a limit, and whose context ends meanwhile, makes all of them or
// none. Otherwise the limit would have lost its balance, or would never grant again.
func TestShardsAreMadeAllOrNoneWheneverTheContextEnds(t *testing.T) {
	t.Parallel()
	i := interrupts(t)
	rule := ratelimit.TokenBucket{Rate: 100, Period: rig.Never}
	one := ratelimit.MustDefine("made", rule)
	four := ratelimit.MustDefine("made", rule, ratelimit.Shards(4))
	ended := 0
	for n := int64(1); n < 10; n++ {
		key := fmt.Sprint(n)
		l := rig.Limiter(t, ratelimit.Config{})
		takeOK(t, first(l.Autocommit(i.pool).RateLimit(t.Context(), one.For(key).Count(60))))
		want := 39.0
		if i.after(t, n, func(ctx context.Context, tx *sql.Tx) error {
			return l.InSQL(tx).Consume(ctx, four.For(key))
		}) != nil {
			ended, want = ended+1, 40
		}
		wantLeft(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(i.pool), one.For(key), want)
	}
	if ended < 5 {
		t.Errorf("only %d calls have ended with their contexts", ended)
	}
}

// All shards of a limit are resumed, or none. Those that stayed paused would seem to wait for lines
// that were merged, which no further Resume ends.
func TestShardsAreResumedAllOrNoneWheneverTheContextEnds(t *testing.T) {
	t.Parallel()
	i := interrupts(t)
	l := rig.Limiter(t, ratelimit.Config{})
	auto := l.Autocommit(i.pool)
	k := ratelimit.MustDefine("resumed", ratelimit.TokenBucket{Rate: 100, Period: rig.Never},
		ratelimit.Shards(4)).For("k")
	takeOK(t, first(auto.RateLimit(t.Context(), k)))
	for n := int64(1); n < 5; n++ {
		if err := auto.Pause(t.Context(), time.Hour, k); err != nil {
			t.Fatal(err)
		}
		err := i.after(t, n, func(ctx context.Context, tx *sql.Tx) error {
			return l.InSQL(tx).Resume(ctx, k)
		})
		t.Log(n, err)
		if err := auto.Resume(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if s, err := auto.Value(t.Context(), k); err != nil || !s.PausedUntil.IsZero() {
			t.Fatalf("INSERT %d: paused until %v (%v) after Resume", n, s.PausedUntil, err)
		}
	}
}

// What a call took of several limits comes back as a whole, or not at all.
func TestAllOrNothingComesBackWheneverTheContextEnds(t *testing.T) {
	t.Parallel()
	i := interrupts(t)
	l := rig.Limiter(t, ratelimit.Config{})
	auto := l.Autocommit(i.pool)
	rule := ratelimit.TokenBucket{Rate: 100, Period: rig.Never}
	a, b := ratelimit.MustDefine("a", rule), ratelimit.MustDefine("b", rule)
	for n := int64(1); n < 3; n++ {
		key := fmt.Sprint(n)
		res := takeOK(t, first(auto.RateLimit(t.Context(),
			a.For(key).Count(60), b.For(key).Count(60))))
		err := i.after(t, n, func(ctx context.Context, tx *sql.Tx) error {
			return l.InSQL(tx).GiveBack(ctx, res)
		})
		want := 100.0
		if err != nil {
			want = 40
		}
		wantLeft(t, auto, a.For(key), want)
		wantLeft(t, auto, b.For(key), want)
	}
}
