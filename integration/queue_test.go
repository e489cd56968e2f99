package integration

import (
	"context"
	"fmt"
	"strings"
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

// queueLocks are the advisory locks by which transactions queue for rows.
const queueLocks = `FROM pg_locks q WHERE q.locktype = 'advisory' AND q.objsubid = 1 AND q.classid::bigint >> 16 = x'5765'::bigint`

// queueing counts transactions, and those that queued.
type queueing struct{ queued, all atomic.Int64 }

func (q *queueing) Decided(context.Context, ratelimit.DecidedEvent) {}

func (q *queueing) Transacted(_ context.Context, e ratelimit.TransactedEvent) {
	q.all.Add(1)
	if e.Queued > 0 {
		q.queued.Add(1)
	}
}

// takeInTx takes in a transaction at a level, and then works.
func takeInTx(ctx context.Context, l *ratelimit.Limiter, pool ratelimit.Beginner,
	level pgx.TxIsoLevel, r ratelimit.Request, work func(pgx.Tx)) error {
	return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
		res, err := l.RateLimit(ctx, tx, r)
		if err != nil {
			return err
		}
		work(tx)
		return res.Err()
	})
}

func nothing(pgx.Tx) {}

// lockOf is the number of the lock by which transactions queue for a row.
func lockOf(t *testing.T, pool *pgxpool.Pool, r ratelimit.Request) (lock int64) {
	t.Helper()
	err := queued(t.Context(), rig.Limiter(t, ratelimit.Config{}), pool, pgx.Serializable, r.Count(0), func(tx pgx.Tx) {
		err := tx.QueryRow(t.Context(),
			`SELECT q.classid::bigint << 32 | q.objid::bigint `+queueLocks+` AND q.pid = pg_backend_pid()`).
			Scan(&lock)
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// stall begins a transaction that has queued for a row and has taken from it, and stays open until
// goOn is called.
func stall(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel, r ratelimit.Request) (goOn func()) {
	t.Helper()
	l := rig.Limiter(t, ratelimit.Config{})
	holds, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		err := queued(context.WithoutCancel(t.Context()), l, pool, level, r, func(pgx.Tx) { close(holds); <-release })
		if err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-holds:
	case <-ended:
		t.FailNow()
	}
	goOn = sync.OnceFunc(func() { close(release); <-ended })
	t.Cleanup(goOn)
	return goOn
}

// A callback that stalls holds up those who want its key, and nobody else, though all keys have a
// queue.
func TestAStalledCallbackHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	const keys = 40 // with tables to queue for, at the most one in as many as there are tables would get by
	limit := ratelimit.MustDefine("stalled", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	for _, level := range rig.Levels[1:] {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 8 }), rig.Limiter(t, ratelimit.Config{})
			ctx, cancel := context.WithTimeout(t.Context(), hung)
			defer cancel()
			if err := queued(ctx, l, pool, level, limit.For(fmt.Sprint("user-", 0)), nothing); err != nil {
				t.Fatal(err)
			}
			goOn := stall(t, pool, level, limit.For(fmt.Sprint("user-", 0)))
			var waiters sync.WaitGroup
			var ended atomic.Int64
			for range 3 {
				waiters.Go(func() {
					if err := takeInTx(ctx, l, pool, level, limit.For(fmt.Sprint("user-", 0)), nothing); err != nil {
						t.Error(err)
					}
					ended.Add(1)
				})
			}
			for i := 1; i < keys; i++ {
				if err := queued(ctx, l, pool, level, limit.For(fmt.Sprint("user-", i)), nothing); err != nil {
					t.Errorf("%s, while another key's callback stalls: %v", fmt.Sprint("user-", i), err)
				}
			}
			if n := ended.Load(); n != 0 {
				t.Errorf("%d callers of the stalled key did not wait for it", n)
			}
			goOn()
			waiters.Wait()
		})
	}
}

// The same key of the same limit in another schema is another key.
func TestAStalledCallbackHoldsUpNoOtherSchema(t *testing.T) {
	t.Parallel()
	r := ratelimit.MustDefine("stalled", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}).For("k")
	here, there := pgtest.Pool(t), pgtest.Pool(t)
	stall(t, here, pgx.Serializable, r)
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	if err := queued(ctx, rig.Limiter(t, ratelimit.Config{}), there, pgx.Serializable, r, nothing); err != nil {
		t.Error(err)
	}
}

// After keys have had a second caller for a while, their transactions soon no longer queue: over a
// network as well, where each round trip takes longer than a wait that would mean something.
func TestNobodyQueuesWhenNobodyConflicts(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	const keys = 12
	limit := ratelimit.MustDefine("calm", ratelimit.TokenBucket{Rate: 1e6, Period: rig.Never})
	for _, roundTrip := range []time.Duration{0, 3 * time.Millisecond} {
		t.Run(roundTrip.String(), func(t *testing.T) {
			t.Parallel()
			var seen queueing
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 * keys })
			if roundTrip > 0 {
				pool = rig.Through(t, pool, rig.Far(t, pool, roundTrip))
			}
			l := rig.Limiter(t, ratelimit.Config{Observer: &seen})
			ctx, cancel := context.WithTimeout(t.Context(), hung)
			defer cancel()
			var callers sync.WaitGroup
			until(t, func() bool { // until the callers of a key have met
				for i := range 2 * keys {
					callers.Go(func() {
						for range 4 {
							if err := takeInTx(ctx, l, pool, pgx.Serializable, limit.For(fmt.Sprint("user-", i%keys)), func(pgx.Tx) {
								time.Sleep(10 * time.Millisecond)
							}); err != nil {
								t.Error(err)
							}
						}
					})
				}
				callers.Wait()
				return seen.queued.Load() > 0
			})
			calm := func() int64 { // one caller for each key
				seen.queued.Store(0)
				for i := range keys {
					callers.Go(func() {
						if err := takeInTx(ctx, l, pool, pgx.Serializable, limit.For(fmt.Sprint("user-", i)), nothing); err != nil {
							t.Error(err)
						}
					})
				}
				callers.Wait()
				return seen.queued.Load()
			}
			until(t, func() bool { return calm() == 0 })
			for range 20 {
				if n := calm(); n != 0 {
					t.Errorf("%d transactions queued after others had not, without a conflict", n)
				}
			}
		})
	}
}

// Reads that cannot be serialized fail a take with 40001 as well. Its row is not contended for
// that.
func TestAnotherKindOfConflictQueuesNobody(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	limit := ratelimit.MustDefine("reads", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	var seen queueing
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{Observer: &seen})
	rig.Exec(t, pool, `CREATE TABLE doctor (name text PRIMARY KEY, on_call bool NOT NULL)`)
	rig.Exec(t, pool, `INSERT INTO doctor SELECT i::text, false FROM generate_series(1, 1000) i`)
	rig.Exec(t, pool, `ANALYZE doctor`)
	rig.Take(t, l.Autocommit(pool), limit.For("k"))
	reader := rig.Begin(t, pool, pgx.Serializable)
	runs := 0
	var met error
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		if _, err := tx.Exec(ctx, `SELECT * FROM doctor WHERE name = '7'`); err != nil {
			return err
		}
		if runs == 1 { // it reads what another writes, and writes what the reader has read
			if _, err := l.Value(t.Context(), reader, limit.For("k")); err != nil {
				return err
			}
			other := rig.Begin(t, pool, pgx.Serializable)
			if _, err := other.Exec(t.Context(), `SELECT 1 FROM doctor WHERE name = '9'; UPDATE doctor SET on_call = true WHERE name = '7'`); err != nil {
				return err
			}
			rig.Commit(t, other)
		}
		_, err := l.RateLimit(ctx, tx, limit.For("k"))
		if runs == 1 {
			met = err
		}
		return err
	})
	if err != nil || runs != 2 || rig.SQLState(met) != "40001" {
		t.Fatalf("ran %d times, then %v; first %v", runs, err, met)
	}
	if n := seen.queued.Load(); n != 0 {
		t.Errorf("%d transactions queued", n)
	}
}

// A beginner that is not a pool or a connection may have done something in the transaction, which
// queueing would end.
func TestATransactionOfAnotherBeginnerDoesNotQueue(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	limit := ratelimit.MustDefine("another", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	var seen queueing
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{Observer: &seen})
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	runs := 0
	err := l.InTx(t.Context(), tenantOf{pool}, func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 {
			rig.Take(t, l.Autocommit(pool), limit.For("k"))
		}
		if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
			return err
		}
		var tenant string
		err := tx.QueryRow(ctx, `SELECT current_setting('my.tenant')`).Scan(&tenant)
		if tenant != "acme" {
			t.Errorf("the transaction is of tenant %q", tenant)
		}
		return err
	})
	if err != nil || runs != 2 || seen.queued.Load() != 0 {
		t.Errorf("ran %d times, %d queued, then %v", runs, seen.queued.Load(), err)
	}
	wantValue(t, l, pool, limit.For("k"), 1000-2)
}

// tenantOf begins transactions as a program does that has policies for rows.
type tenantOf struct{ pool *pgxpool.Pool }

func (b tenantOf) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	tx, err := b.pool.BeginTx(ctx, opts)
	if err == nil {
		_, err = tx.Exec(ctx, `SELECT set_config('my.tenant', 'acme', true)`)
	}
	return tx, err
}

// Callers who queue through a pooler share two server sessions. None of these keeps a lock.
func TestQueuesBehindPgBouncer(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "PgBouncer stands before one server here")
	limit := ratelimit.MustDefine("pooled", ratelimit.TokenBucket{Rate: 10_000, Period: rig.Century})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(strings.ReplaceAll(mode.String(), " ", ""), func(t *testing.T) {
			t.Parallel()
			direct := pgtest.Pool(t)
			cfg, err := pgxpool.ParseConfig(pgtest.Bouncer(t, direct))
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode, cfg.MaxConns = mode, 8
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			var seen queueing
			l := rig.Limiter(t, ratelimit.Config{
				Schema: direct.Config().ConnConfig.RuntimeParams["search_path"], Observer: &seen,
			})
			k := limit.For("k")
			var pids sync.Map
			var callers sync.WaitGroup
			var taken atomic.Int64
			for range 8 {
				callers.Go(func() {
					// A slow machine may run them one after the other for a while.
					for i := 0; i < 10 || seen.queued.Load() == 0 && i < 1000; i++ {
						taken.Add(1)
						err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
							if _, err := l.RateLimit(ctx, tx, k); err != nil {
								return err
							}
							var pid int
							err := tx.QueryRow(ctx, `SELECT pg_backend_pid() FROM pg_sleep(0.002)`).Scan(&pid)
							pids.Store(pid, true)
							return err
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			callers.Wait()
			if seen.queued.Load() == 0 {
				t.Error("nobody queued")
			}
			for pid := range pids.Range {
				var n int
				if err := direct.QueryRow(t.Context(),
					`SELECT count(*) `+queueLocks+` AND q.pid = $1`, pid).Scan(&n); err != nil ||
					n != 0 {
					t.Errorf("session %d holds %d locks, %v", pid, n, err)
				}
			}
			wantValue(t, l, direct, k, 10_000-float64(taken.Load()))
		})
	}
}
