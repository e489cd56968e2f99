package integration

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

func pruned(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool, cfg ratelimit.PruneConfig) ratelimit.Pruned {
	t.Helper()
	if cfg.Share == 0 {
		cfg.Share = 1
	}
	done, err := l.Prune(context.Background(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func rowsOf(t testing.TB, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A balance is deleted as soon as it is full by the rule that took from it, and not a microsecond
// earlier.
func TestOnlyWhatIsLikeNoRowIsPruned(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 10, Period: time.Second})
	window := ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 10, Period: time.Second, Start: rig.Clock().Now()})
	slow := ratelimit.MustDefine("slow", ratelimit.FixedWindow{Rate: 10, Period: time.Hour, Start: rig.Clock().Now()})
	sharded := ratelimit.MustDefine("sharded", ratelimit.TokenBucket{Rate: 10, Period: time.Second},
		ratelimit.Shards(2))
	for name, tc := range map[string]struct {
		do   func(ctx context.Context, a *ratelimit.Autocommit, c *weirtest.Clock) error
		full time.Duration // after which the balance is like none; 0: never by time alone
		rows int           // that stay
	}{
		"a bucket": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return second(a.RateLimit(ctx, bucket.For("k").Count(5)))
		}, 500 * time.Millisecond, 0},
		"in debt": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return second(a.RateLimit(ctx, bucket.For("k").Count(25).OrReserve()))
		}, 2500 * time.Millisecond, 0},
		"a window": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return second(a.RateLimit(ctx, window.For("k")))
		}, time.Second, 0},
		"by the rule of the call": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return second(a.RateLimit(ctx, bucket.For("k").Rule(ratelimit.TokenBucket{Rate: 1, Period: time.Second})))
		}, time.Second, 0},
		"shards, with their head": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return second(a.RateLimit(ctx, sharded.For("k").Count(10)))
		}, time.Second, 0},
		"in a pause, and after it while somebody may wait": {func(ctx context.Context,
			a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return a.Pause(ctx, time.Minute, bucket.For("k"))
		}, time.Minute + 30*24*time.Hour, 0},
		"in a pause for longer than that": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return a.Pause(ctx, 60*24*time.Hour, bucket.For("k"))
		}, 90 * 24 * time.Hour, 0},
		"in a pause within one window": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			return a.Pause(ctx, time.Minute, slow.For("k")) // which delays no window
		}, time.Minute, 0},
		"given back": {func(ctx context.Context, a *ratelimit.Autocommit, _ *weirtest.Clock) error {
			res, err := a.RateLimit(ctx, bucket.For("k"))
			if err == nil {
				err = a.GiveBack(ctx, res)
			}
			return err
		}, time.Microsecond, 0},
	} {
		for _, portable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/portable %v", name, portable), func(t *testing.T) {
				t.Parallel()
				pool, c := pgtest.Pool(t), rig.Clock()
				l := rig.Limiter(t, ratelimit.Config{Portable: portable, Clock: c.Now})
				if err := tc.do(t.Context(), l.Autocommit(pool), c); err != nil {
					t.Fatal(err)
				}
				before := rowsOf(t, pool, "weir_balance")
				if tc.full > time.Microsecond {
					c.Add(tc.full - time.Microsecond)
					if done := pruned(t, l, pool, ratelimit.PruneConfig{}); done.Deleted != 0 ||
						done.Looked != int64(before) {
						t.Errorf("a microsecond before it is full: %+v of %d", done, before)
					}
				}
				c.Add(2 * time.Microsecond)
				if done := pruned(t, l, pool, ratelimit.PruneConfig{}); done.Deleted != int64(before-tc.rows) ||
					rowsOf(t, pool, "weir_balance") != tc.rows {
					t.Errorf("when it is full: %+v of %d", done, before)
				}
				takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), bucket.For("k").Count(10),
					window.For("k").Count(10), sharded.For("k").Count(10))))
			})
		}
	}
}

func second(_ ratelimit.Result, err error) error { return err }

// Beside callers of the same keys Prune loses no take, waits for nobody and fails nobody.
func TestPruningBesideCallersLosesNoTake(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	// full in a millisecond
	limit := ratelimit.MustDefine("busy",
		ratelimit.TokenBucket{Rate: 1000, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	var wg, others sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	var deleted atomic.Int64
	others.Go(func() {
		for ctx.Err() == nil {
			done, err := l.Prune(ctx, pool, ratelimit.PruneConfig{Share: 1, Batch: 3})
			deleted.Add(done.Deleted)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
	began := time.Now()
	var granted [8]atomic.Int64
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					_, err := l.RateLimit(ctx, tx, limit.For(fmt.Sprint("k", (n+i)%8)))
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for k := range granted {
		wg.Go(func() {
			for range 60 {
				res, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For(fmt.Sprint("counted", k)))
				if err != nil {
					t.Error(err)
				} else if res.OK {
					granted[k].Add(1)
				}
			}
		})
	}
	wg.Wait()
	lasted := time.Since(began)
	until(t, func() bool { return deleted.Load() > 0 }) // by now all are full
	stop()
	others.Wait()
	for k := range granted {
		if n := granted[k].Load(); float64(n) > 1+lasted.Seconds()*1000 {
			t.Errorf("key %d was granted %d times in %v", k, n, lasted)
		}
	}
}

// It deletes settlements once they can prove nothing, tells how far it is, and stops when it is
// told to.
func TestPruneTellsAndStops(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	a := l.Autocommit(pool)
	limit := ratelimit.MustDefine("many", ratelimit.TokenBucket{Rate: 10, Period: time.Second})
	for i := range 25 {
		res := takeOK(t, first(a.RateLimit(t.Context(), limit.For(fmt.Sprint(i)))))
		if _, err := a.Settle(t.Context(), res.Reservation(), limit.For(fmt.Sprint(i)).Count(0.5)); err != nil {
			t.Fatal(err)
		}
	}
	c.Add(time.Second)
	enough := errors.New("enough")
	done, err := l.Prune(t.Context(), pool,
		ratelimit.PruneConfig{Batch: 10, Share: 1, Progress: func(p ratelimit.Pruned) error {
			if p.Looked >= 20 {
				return enough
			}
			return nil
		}})
	if !errors.Is(err, enough) || done != (ratelimit.Pruned{Looked: 20, Deleted: 20}) {
		t.Errorf("%+v, %v", done, err)
	}
	if done := pruned(t, l, pool, ratelimit.PruneConfig{}); done != (ratelimit.Pruned{Looked: 5,
		Deleted: 5}) || rowsOf(t, pool, "weir_settled") != 25 {
		t.Errorf("%+v", done)
	}
	if _, err := pool.Exec(t.Context(),
		`INSERT INTO weir_slot (until, holder, slot, name, key) SELECT $1::timestamptz + (i - 3) * interval '1 s',
			gen_random_uuid(), i, 'slots', 'k' FROM generate_series(0, 5) i`, c.Now()); err != nil {
		t.Fatal(err)
	}
	// It was given back, but so short a time ago that a clock may be set back to before its token.
	if _, err := pool.Exec(t.Context(), `INSERT INTO weir_slot (until, holder, slot, token, name, key) VALUES ('epoch', gen_random_uuid(), 0, $1, 'slots', 'l')`,
		c.Now().Add(-time.Hour).UnixMicro()+1); err != nil {
		t.Fatal(err)
	}
	if done := pruned(t, l, pool, ratelimit.PruneConfig{Batch: 2}); done != (ratelimit.Pruned{
		Slots: 4,
	}) || rowsOf(t, pool, "weir_slot") != 3 {
		t.Errorf("%+v", done)
	}
	c.Add(31 * 24 * time.Hour)
	if done := pruned(t, l, pool, ratelimit.PruneConfig{Batch: 7}); done != (ratelimit.Pruned{
		Slots: 3, Settled: 25,
	}) || rowsOf(t, pool, "weir_settled") != 0 {
		t.Errorf("%+v", done)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Prune(ended, pool, ratelimit.PruneConfig{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, cfg := range []ratelimit.PruneConfig{{Batch: -1}, {Share: -0.1}, {Share: 1.5}} {
		if _, err := l.Prune(t.Context(), pool, cfg); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%+v: %v", reflect.ValueOf(cfg), err)
		}
	}
	if _, err := l.Prune(t.Context(), nil, ratelimit.PruneConfig{}); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Error(err)
	}
}

// A row that a caller holds is left to it.
func TestPruneWaitsForNobody(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("held", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second})
	for _, k := range []string{"a", "b", "c"} {
		takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.For(k))))
	}
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("b"))))
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	if done, err := l.Prune(ctx, pool, ratelimit.PruneConfig{}); err != nil || done.Deleted != 2 {
		t.Errorf("%+v, %v", done, err)
	}
}

// Of a limit with shards the pauses of each say when what was granted in them may run. So those
// that were put off go together, be the one that stays in use or not full yet: one that forgot a
// pause which another remembers would be behind it by that.
func TestAShardThatWasPausedIsPrunedWithTheOthers(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, of := range map[string]struct {
		rule         ratelimit.TokenBucket
		before, then time.Duration // a take from one of the two
	}{
		"InUse":   {ratelimit.TokenBucket{Rate: 10, Period: time.Second}, 29 * day, 2 * day},
		"NotFull": {ratelimit.TokenBucket{Rate: 10, Period: 100 * day}, time.Hour, 31 * day},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, c := pgtest.Pool(t), rig.Clock()
			l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
			a := l.Autocommit(pool)
			limit := ratelimit.MustDefine("paused", of.rule, ratelimit.Shards(2)).Global()
			pause := func() {
				t.Helper()
				if err := a.Pause(t.Context(), time.Hour, limit); err != nil {
					t.Fatal(err)
				}
			}
			pause()
			c.Add(of.before)
			takeOK(t, first(a.RateLimit(t.Context(), limit.Count(4))))
			c.Add(of.then)
			pruned(t, l, pool, ratelimit.PruneConfig{})
			pause()
			for range 10 {
				res := takeOK(t, first(a.RateLimit(t.Context(), limit.OrReserve())))
				s, err := a.Value(t.Context(), limit)
				if err != nil {
					t.Fatal(err)
				}
				if run, _ := res.Reservation().Takes[0].RunAt(s); !run.Equal(res.RunAt) ||
					res.Outcomes[0].Delay != s.Delay {
					t.Errorf("it was to run at %v after %v of pauses, and by now at %v after %v",
						res.RunAt, res.Outcomes[0].Delay, run, s.Delay)
				}
			}
			c.Add(200 * day)
			if pruned(t, l, pool, ratelimit.PruneConfig{}); rowsOf(t, pool, "weir_balance") != 0 {
				t.Error("what nobody has used for a month is not pruned")
			}
		})
	}
}

// A long pause puts a reservation off. After a reset and Prune its holder is told the same time.
func TestAPauseIsNotForgottenWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	pool, c := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	a := l.Autocommit(pool)
	limit := ratelimit.MustDefine("paused", ratelimit.TokenBucket{Rate: 1, Period: day}).Global()
	takeOK(t, first(a.RateLimit(t.Context(), limit)))
	waits := takeOK(t, first(a.RateLimit(t.Context(), limit.OrReserve()))).Reservation().Takes[0]
	if err := a.Pause(t.Context(), 40*day, limit); err != nil {
		t.Fatal(err)
	}
	runs := func() time.Time {
		t.Helper()
		s, err := a.Value(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := waits.RunAt(s)
		return at
	}
	want := runs()
	if err := a.ResetRateLimit(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
	c.Add(40*day + time.Hour)
	pruned(t, l, pool, ratelimit.PruneConfig{})
	if at := runs(); !at.Equal(want) {
		t.Errorf("it runs at %v, and was to run at %v", at, want)
	}
}

// What a batch has deleted counts only if it is committed.
func TestPruneDoesNotCountWhatIsRolledBack(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t)
		l := rig.Limiter(t, cfg)
		limit := ratelimit.MustDefine("rolled back", ratelimit.TokenBucket{Rate: 1, Period: time.Microsecond})
		takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.For("k"))))
		time.Sleep(time.Millisecond) // it is full again
		rig.Exec(t, pool, `
			CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not at COMMIT'; END $$;
			CREATE CONSTRAINT TRIGGER refuses AFTER DELETE ON weir_balance DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION refuses()`)
		done, err := l.Prune(t.Context(), pool, ratelimit.PruneConfig{})
		if err == nil || done != (ratelimit.Pruned{}) {
			t.Errorf("%+v, %v", done, err)
		}
		rig.Exec(t, pool, `DROP TRIGGER refuses ON weir_balance`)
		if done, err := l.Prune(t.Context(), pool, ratelimit.PruneConfig{}); err != nil || done.Deleted != 1 {
			t.Errorf("%+v, %v, want one deleted", done, err)
		}
	})
}
