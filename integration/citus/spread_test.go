package citus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

const share = 500 // tokens of a shard

var hot = ratelimit.MustDefine(
	"hot", ratelimit.TokenBucket{Rate: 8 * share, Period: 1000 * time.Hour}, ratelimit.Shards(8),
)

// takenByNode is how many tokens were taken from the rows on each node.
func takenByNode(t *testing.T, pool *pgxpool.Pool, capacity float64) map[int]float64 {
	t.Helper()
	const sql = `WITH r AS MATERIALIZED (SELECT key, value FROM weir_balance WHERE name = 'hot' AND shard > 0 AND value > '-Infinity')
		SELECT n.nodeport, sum($1 - r.value)::float8 FROM r
			JOIN pg_dist_placement p ON p.shardid = get_shard_id_for_distribution_column('weir_balance', r.key)
			JOIN pg_dist_node n USING (groupid) GROUP BY 1`
	taken := map[int]float64{}
	rows, _ := pool.Query(t.Context(), sql, capacity)
	var port int
	var n float64
	if _, err := pgx.ForEachRow(rows, []any{&port, &n}, func() error { taken[port] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return taken
}

// takeAll has eight callers take n tokens, one at a time.
func takeAll(t *testing.T, n int, take func(context.Context) error) {
	t.Helper()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range n / 8 {
				if err := take(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}

// evenly fails unless each of two nodes has had 45 to 55 % of n.
func evenly(t *testing.T, taken map[int]float64, n float64) {
	t.Helper()
	sum := 0.0
	for node, of := range taken {
		sum += of
		if of < 0.45*n || of > 0.55*n {
			t.Errorf("node %d has had %v of %v takes", node, of, n)
		}
	}
	if len(taken) != 2 || sum < n-1 || sum > n {
		t.Errorf("%v were taken on %d nodes, want %v on two", sum, len(taken), n)
	}
}

// Of the takes of a limit without keys that is divided into shards, each of two workers does about
// half.
func TestAHotLimitIsSpreadOverNodes(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	const n = 6 * share
	takeAll(t, n, func(ctx context.Context) error { return l.Autocommit(pool).Consume(ctx, hot.Global()) })
	taken := takenByNode(t, pool, share)
	t.Logf("takes by node: %v", taken)
	evenly(t, taken, n)
}

// What a limit without keys and without shards has granted is settled on the node of its balance. So
// is the next attempt.
func TestALimitWithoutKeysIsSettledOnItsNode(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	r := ratelimit.MustDefine("plain", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}).Global()
	for range 10 {
		res, err := l.Autocommit(pool).RateLimit(t.Context(), r.OrReserve())
		if err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, of := range []ratelimit.Reservation{res.Reservation(), res.Reservation().Again()} {
			if ok, err := l.Autocommit(pool).Settle(t.Context(), of, r.Count(2)); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
	}
	const where = `WITH r AS MATERIALIZED (SELECT DISTINCT key FROM %[1]s)
		SELECT array_agg(DISTINCT p.groupid) FROM r
			JOIN pg_dist_placement p ON p.shardid = get_shard_id_for_distribution_column('%[1]s', r.key)`
	balances := scan[[]int32](t, pool, fmt.Sprintf(where, "weir_balance"))
	settled := scan[[]int32](t, pool, fmt.Sprintf(where, "weir_settled"))
	if len(balances) != 1 || !slices.Equal(balances, settled) {
		t.Errorf("the balance is on node %v, and what was settled of it on %v", balances, settled)
	}
}

// left is what the limit has left.
func left(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool) float64 {
	t.Helper()
	s, err := l.Autocommit(pool).Value(t.Context(), hot.Global())
	if err != nil {
		t.Fatal(err)
	}
	return s.Value
}

// near reports whether two balances are equal, apart from tokens that flow in while the test runs.
func near(got, want float64) bool { return got >= want && got < want+1 }

// Everything that is done to a limit reaches its shards on all nodes.
func TestASpreadLimitIsOneLimit(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	a := l.Autocommit(pool)
	const capacity = 8 * share
	// More than a share, as parts of several shards on both nodes, given back and taken again.
	for range 2 {
		res, err := a.RateLimit(t.Context(), hot.Global().Count(3*share))
		if err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		if got := left(t, l, pool); !near(got, 5*share) {
			t.Errorf("%v are left", got)
		}
		if err := a.GiveBack(t.Context(), res); err != nil {
			t.Fatal(err)
		}
	}
	if got := left(t, l, pool); !near(got, capacity) {
		t.Errorf("%v are left of what was given back", got)
	}

	// A reservation is settled once, whoever has a copy.
	res, err := a.RateLimit(t.Context(), hot.Global().Count(100).OrReserve())
	if err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	for i := range 2 {
		if settled, err := a.Settle(t.Context(), res.Reservation(),
			hot.Global().Count(40)); err != nil || settled != (i == 0) {
			t.Errorf("settled for the %d. time: %v, %v", i+1, settled, err)
		}
	}
	if got := left(t, l, pool); !near(got, capacity-40) {
		t.Errorf("%v are left of a settlement of 40", got)
	}
	const onOneNode = `SELECT count(*) FROM weir_settled s WHERE key IN (SELECT key FROM weir_balance WHERE name = 'hot' AND shard > 0)`
	if n := scan[int](t, pool, onOneNode); n != 1 {
		t.Errorf("%d settlements are where a shard of the limit is", n)
	}

	// More and fewer shards, with a pause that a reservation in a former one learns of.
	reshard := func(n int) {
		t.Helper()
		err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
			return l.Reshard(t.Context(), tx, n, hot.Global())
		})
		if err != nil {
			t.Fatalf("%d shards: %v", n, err)
		}
	}
	for _, n := range []int{16, 3, 8} {
		reshard(n)
		if got := left(t, l, pool); !near(got, capacity-40) {
			t.Errorf("%v are left with %d shards", got, n)
		}
	}
	waits, err := a.RateLimit(t.Context(), hot.Global().Count(capacity).OrReserve())
	if err != nil || !waits.OK {
		t.Fatalf("%+v, %v", waits, err)
	}
	reshard(16)
	if err := a.Pause(t.Context(), time.Hour, hot.Global()); err != nil {
		t.Fatal(err)
	}
	takes := waits.Reservation().Takes
	states, now, err := l.Lines(t.Context(), pool, append(takes, ratelimit.Take{Limit: "hot"})...)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range states {
		if s.PausedUntil.Before(now.Add(50*time.Minute)) || i < len(takes) && s.Delay < 50*time.Minute {
			t.Errorf("line %d does not know of the pause: %+v", i, s)
		}
	}

	// It is looked at as one, and nothing else is there.
	r, err := inspect.New(pool, inspect.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Balance(t.Context(), "hot", "")
	if err != nil || b.Problem != "" || b.Shards != 16 || b.PausedUntil.Before(now.Add(50*time.Minute)) {
		t.Errorf("inspect: %+v, %v", b, err)
	}
	one, err := r.Limit(t.Context(), "hot")
	if err != nil || one.Looked != 1 || one.Shards != 16 {
		t.Errorf("inspect: %+v, %v", one, err)
	}
	if err := a.Resume(t.Context(), hot.Global()); err != nil {
		t.Fatal(err)
	}

	// All of it is reset, and goes when it is pruned, with the rows of former layouts once nobody
	// waits.
	if err := a.ResetRateLimit(t.Context(), hot.Global()); err != nil {
		t.Fatal(err)
	}
	if got := left(t, l, pool); got != capacity {
		t.Errorf("%v are left after a reset", got)
	}
	later := limiter(t, ratelimit.Config{Citus: true, Clock: func() time.Time {
		return time.Now().Add(60 * 24 * time.Hour)
	}})
	pruned, err := later.Prune(t.Context(), pool, ratelimit.PruneConfig{Share: 1})
	if n := scan[int](t, pool, `SELECT count(*) FROM weir_balance`); err != nil || n != 0 || pruned.Deleted == 0 {
		t.Errorf("%d rows are left by Prune: %+v, %v", n, pruned, err)
	}
	if err := a.Consume(t.Context(), hot.Global()); err != nil {
		t.Error(err)
	}
}

// No key of a caller's is one under which shards are stored.
func TestNoKeyIsThatOfAShard(t *testing.T) {
	t.Parallel()
	_, err := ratelimit.Decide(hot.For("\x01weir nqc"), ratelimit.State{}, time.Now())
	if err == nil || !strings.Contains(err.Error(), "reserves for shards") {
		t.Errorf("got %v", err)
	}
}

// The shards of a key stay together, where the rows of the tenant are.
func TestShardsOfAKeyStayOnItsNode(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	if err := l.Autocommit(pool).Consume(t.Context(), hot.For("acme")); err != nil {
		t.Fatal(err)
	}
	const sql = `SELECT count(*) FROM weir_balance WHERE name = 'hot' AND key = 'acme' AND shard > 0`
	if n := scan[int](t, pool, sql); n != 8 {
		t.Errorf("%d shards have the key", n)
	}
}

// Limits with shards, debts and settlements that were made on one server move to their nodes.
func TestShardsMoveToTheirNodes(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	if err := migrate(t, pool); err != nil {
		t.Fatal(err)
	}
	was := limiter(t, ratelimit.Config{Portable: true})
	const n = 4 * share
	takeAll(t, n, func(ctx context.Context) error { return was.Autocommit(pool).Consume(ctx, hot.Global()) })
	res, err := was.Autocommit(pool).RateLimit(t.Context(), hot.Global().Count(10).OrReserve())
	if err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	if settled, err := was.Autocommit(pool).Settle(t.Context(), res.Reservation()); err != nil || !settled {
		t.Fatal(settled, err)
	}
	before := left(t, was, pool)
	for range 2 {
		if err := migrate(t, pool, schema.Distributed()); err != nil {
			t.Fatal(err)
		}
	}
	l := limiter(t, ratelimit.Config{Citus: true})
	if got := left(t, l, pool); !near(got, before) {
		t.Errorf("%v are left, %v were", got, before)
	}
	evenly(t, takenByNode(t, pool, share), n+10)
	if settled, err := l.Autocommit(pool).Settle(t.Context(), res.Reservation()); err != nil || settled {
		t.Errorf("settled again: %v, %v", settled, err)
	}

	// So do those that a former release has distributed, which had them without a key.
	exec(t, pool, `CREATE TABLE old AS SELECT * FROM weir_balance`, `DELETE FROM weir_balance`)
	exec(t, pool, `INSERT INTO weir_balance SELECT value, ts, capacity, rate, period, delay, moved, origin, paused_until, shard, name, '' FROM old`)
	if err := migrate(t, pool, schema.Distributed()); err != nil {
		t.Fatal(err)
	}
	if got := left(t, l, pool); !near(got, before) {
		t.Errorf("%v are left, %v were", got, before)
	}
	evenly(t, takenByNode(t, pool, share), n+10)

	// And what a program without Config.Citus has written where nobody looks goes.
	exec(t, pool, `INSERT INTO weir_balance SELECT value, ts, capacity, rate, period, delay, moved, origin, paused_until, shard, name, '' FROM old WHERE shard > 0`)
	if err := migrate(t, pool, schema.Distributed()); err != nil {
		t.Fatal(err)
	}
	if got := left(t, l, pool); !near(got, before) {
		t.Errorf("%v are left, %v were", got, before)
	}
}

// Migrating again waits for no transaction that has taken, and so stops nobody else.
func TestMigratingAgainWaitsForNobody(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if err := l.Consume(t.Context(), tx, hot.For("acme")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := schema.Migrate(ctx, pool, schema.Distributed()); err != nil {
			t.Fatal(err)
		}
	}
}

// Who connects to the workers needs no coordinator, if nothing else of it is written. In a transaction
// that InTx has not begun, this takes Colocated.
func TestWorkersTakeWithoutTheCoordinator(t *testing.T) {
	c, pool := killable(t)
	l, colocated := limiter(t, ratelimit.Config{Citus: true}), limiter(t, ratelimit.Config{Citus: true, Colocated: true})
	if err := l.Autocommit(pool).Consume(t.Context(), hot.Global()); err != nil {
		t.Fatal(err)
	}
	var workers []*pgxpool.Pool
	for _, node := range c[1:] {
		worker, err := pgxpool.New(t.Context(), node.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(worker.Close)
		workers = append(workers, worker)
	}
	if err := c[0].Kill(); err != nil {
		t.Fatal(err)
	}
	var next atomic.Int64
	const n = 400
	takeAll(t, n, func(ctx context.Context) error {
		nr := next.Add(1)
		worker := workers[nr%2]
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		switch nr / 2 % 3 {
		case 0:
			return l.Autocommit(worker).Consume(ctx, hot.Global(), budget.For(fmt.Sprint("k", nr%8)))
		case 1:
			return l.InTx(ctx, worker, func(ctx context.Context, tx pgx.Tx) error {
				return l.Consume(ctx, tx, hot.Global())
			})
		}
		return pgx.BeginFunc(ctx, worker, func(tx pgx.Tx) error {
			return colocated.Consume(ctx, tx, hot.Global())
		})
	})
	for _, worker := range workers {
		if got := left(t, l, worker); !near(got, 8*share-n-1) {
			t.Errorf("%v are left", got)
		}
	}
}
