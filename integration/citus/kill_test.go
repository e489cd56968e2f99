package citus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// killable is a cluster of this test's own, with Weir's tables, and a pool on its coordinator. The
// test runs in parallel with others: most of them wait for nodes to start, or for a time-out.
func killable(t *testing.T, opts ...pgserver.Option) (pgserver.Cluster, *pgxpool.Pool) {
	t.Helper()
	t.Parallel()
	return pgtest.OwnCluster(t, append(opts, pgserver.Setting("citus.recover_2pc_interval", "1s"))...)
}

const capacity = 1e6

var budget = ratelimit.MustDefine("budget", ratelimit.TokenBucket{Rate: capacity, Period: 1e6 * time.Hour})

// told is what the callers were told of their transactions.
type told struct {
	mu             sync.Mutex
	committed, not []int64
	unknown        int
	kinds          map[string]int
	transactions   atomic.Int64
}

func (o *told) note(id int64, err error, committing bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.committed = append(o.committed, id)
	case committing || errors.Is(err, ratelimit.ErrOutcomeUnknown):
		o.unknown++
	default:
		o.not = append(o.not, id)
	}
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "127.0.0.1")
		o.kinds[text[:min(len(text), 120)]]++
	}
}

// roundsOfKills is how many nodes a test kills, one after the other: each twice, and more in a long
// run.
func roundsOfKills() int {
	rounds := 6
	if d, err := time.ParseDuration(os.Getenv("WEIR_TEST_DURATION")); err == nil {
		rounds = max(rounds, int(d/(4*time.Second)))
	}
	return rounds
}

// Whichever node is killed when: tokens are gone if and only if the coordinator's row is there that
// was written with them, once all nodes are back; and callers were told so, or that nobody knows.
func TestKilledNodesKeepTokensAndRowsTogether(t *testing.T) {
	c, pool := killable(t)
	exec(t, pool, `CREATE TABLE work (id bigint PRIMARY KEY, key text NOT NULL, tokens float8 NOT NULL)`)
	l := limiter(t, ratelimit.Config{Citus: true})
	outcome := &told{kinds: map[string]int{}}
	began := time.Now()
	stop := callUntilStopped(8, func(n int) {
		id := outcome.transactions.Add(1)
		key, tokens := fmt.Sprint("k", rand.IntN(8)), float64(1+rand.IntN(5))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		committing := false
		work := func(ctx context.Context, tx pgx.Tx) error {
			if err := l.Consume(ctx, tx, budget.For(key).Count(tokens)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO work VALUES ($1, $2, $3)`, id, key, tokens)
			return err
		}
		var err error
		if n%2 == 0 {
			err = l.InTx(ctx, pool, work)
		} else {
			err = own(ctx, pool, work, &committing)
		}
		outcome.note(id, err, committing)
	})
	defer stop()
	kills := killEach(t, c, func() int {
		outcome.mu.Lock()
		defer outcome.mu.Unlock()
		return len(outcome.committed)
	})
	// No call is cancelled: a COMMIT that is under way might end between two reads.
	stop()
	came := time.Since(began).Hours() // a token comes an hour
	recovered(t, pool)

	for _, key := range []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"} {
		written := scan[float64](t, pool, `SELECT coalesce(sum(tokens), 0) FROM work WHERE key = $1`, key)
		taken := scan[float64](t, pool, `SELECT coalesce(max($1 - value), 0) FROM weir_balance WHERE name = 'budget' AND key = $2`, capacity, key)
		if taken > written || taken < written-came {
			t.Errorf("key %s: %v tokens are gone, and %v were written, and %v may have come", key, taken, written, came)
		}
	}
	if n := scan[int](t, pool, `SELECT count(*) FROM unnest($1::bigint[]) AS u (id) WHERE NOT EXISTS (SELECT FROM work w WHERE w.id = u.id)`, outcome.committed); n != 0 {
		t.Errorf("%d transactions are lost that their callers were told were committed", n)
	}
	if n := scan[int](t, pool, `SELECT count(*) FROM work WHERE id = ANY ($1::bigint[])`, outcome.not); n != 0 {
		t.Errorf("%d transactions were committed that their callers were told were not", n)
	}
	t.Logf("%d kills, %d transactions: %d committed, %d not, %d unknown", kills,
		outcome.transactions.Load(), len(outcome.committed), len(outcome.not), outcome.unknown)
	for text, n := range outcome.kinds {
		t.Logf("%6d %s", n, text)
	}
	if len(outcome.committed) == 0 || len(outcome.not)+outcome.unknown == 0 {
		t.Error("want transactions that were committed, and some that met a kill")
	}
}

// own runs work in a transaction of the caller's own, and says whether it came to COMMIT.
func own(ctx context.Context, pool *pgxpool.Pool, work func(context.Context, pgx.Tx) error, committing *bool) error {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := work(ctx, tx); err != nil {
		return err
	}
	*committing = true
	return tx.Commit(ctx)
}

// recovered waits until no node has a transaction left whose outcome it does not know.
func recovered(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := pgtest.Recover(ctx, pool); err != nil {
		t.Fatal(err)
	}
}

// portOf is the port of the node that has the rows of a key.
func portOf(t testing.TB, pool *pgxpool.Pool, key string) int {
	t.Helper()
	return scan[int](t, pool, `SELECT n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid)
		WHERE p.shardid = get_shard_id_for_distribution_column('weir_balance', $1::text)`, key)
}

// A worker that is down fails its own keys, by whatever way they are taken, with an error that says that
// nothing was taken, and no other.
func TestAWorkerThatIsDownFailsOnlyItsOwnKeys(t *testing.T) {
	c, pool := killable(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	down := portOf(t, pool, "k0")
	for _, worker := range c[1:] {
		if strings.Contains(worker.URL(), fmt.Sprint(":", down, "/")) {
			if err := worker.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	takes := takesByRoad(t, l, pool)
	takes["Lease"] = func(ctx context.Context, q ratelimit.Request) (ratelimit.Result, error) {
		lease, err := l.Lease(pool, q, ratelimit.LeaseConfig{})
		if err != nil {
			return ratelimit.Result{}, err
		}
		defer func() { _ = lease.Close(context.WithoutCancel(ctx)) }()
		return lease.Take(ctx, 1)
	}
	met := map[bool]int{}
	for i := range 16 {
		key := fmt.Sprint("k", i)
		dead := portOf(t, pool, key) == down
		for name, take := range takes {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			res, err := take(ctx, budget.For(key))
			cancel()
			met[dead]++
			switch {
			case !dead && (err != nil || !res.OK):
				t.Errorf("%s of a key whose worker is up: %+v, %v", name, res, err)
			case dead && !tellsOfANode(err):
				t.Errorf("%s of a key whose worker is down: %v, want an error that tells so", name, err)
			}
		}
	}
	if met[true] == 0 || met[false] == 0 {
		t.Errorf("%v keys are on the worker that is down: want both", met)
	}
}

// A worker that does not answer holds up calls of its own keys, each until its context ends or for the
// limiter's time-out, and no call of another key, by whatever way.
func TestAWorkerThatHangsHoldsUpOnlyItsOwnKeys(t *testing.T) {
	c, pool := killable(t)
	worker, its, others := byWorker(t, c, pool, "k0")
	pool = wide(t, pool) // each call that hangs has a connection
	takes := takesByRoad(t, limiter(t, ratelimit.Config{Citus: true}), pool)
	short := limiter(t, ratelimit.Config{Citus: true, Timeout: 2 * time.Second}).Autocommit(pool)
	for name, take := range takes {
		for _, key := range append(others[:len(others):len(others)], its...) {
			if res, err := take(t.Context(), budget.For(key)); err != nil || !res.OK {
				t.Fatalf("%s, before: %+v, %v", name, res, err)
			}
		}
	}
	freeze(t, worker)
	left, leave := context.WithCancel(t.Context())
	defer leave()
	var hung sync.WaitGroup
	for name, take := range takes {
		hung.Go(func() {
			if res, err := take(left, budget.For(its[0])); err == nil {
				t.Errorf("%s of a key whose worker hangs: %+v", name, res)
			}
		})
	}
	for range 3 {
		for name, take := range takes {
			for _, key := range others {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if res, err := take(ctx, budget.For(key)); err != nil || !res.OK {
					t.Errorf("%s of a key whose worker is up: %+v, %v", name, res, err)
				}
				cancel()
			}
		}
	}
	if err := short.Consume(t.Context(), budget.For(its[0])); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the limiter's time-out: %v, want that its deadline is exceeded", err)
	}
	leave()
	hung.Wait()
}

// takesByRoad are the ways of taking, by their names.
func takesByRoad(
	t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool,
) map[string]func(context.Context, ratelimit.Request) (ratelimit.Result, error) {
	takes := map[string]func(context.Context, ratelimit.Request) (ratelimit.Result, error){}
	for _, r := range roads(t, l, pool) {
		takes[r.name] = func(ctx context.Context, q ratelimit.Request) (res ratelimit.Result, err error) {
			err = r.call(ctx, func(v ratelimit.Verbs) (err error) {
				res, err = v.RateLimit(ctx, q)
				return err
			})
			return res, err
		}
	}
	return takes
}

// tellsOfANode reports whether an error says that a node is lost, and that nothing was taken.
func tellsOfANode(err error) bool {
	return err != nil && !errors.Is(err, ratelimit.ErrOutcomeUnknown) && strings.Contains(err.Error(), "node")
}

// While a worker is down, a limit without keys grants from its shards on the other worker. Takes that
// choose a shard of the lost one fail, and take nothing. A program that does not know the limit yet has to
// read all of its shards, so it fails.
func TestAWorkerThatIsDownFailsTakesOfALimitsShardsOnIt(t *testing.T) {
	c, pool := killable(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	const before = 8
	for range before { // it knows the shards now
		if err := l.Autocommit(pool).Consume(t.Context(), hot.Global()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c[1].Kill(); err != nil {
		t.Fatal(err)
	}
	pool = wide(t, pool) // no connection of which has used the worker
	call := func(take func(context.Context, ratelimit.Request) (ratelimit.Result, error)) (ratelimit.Result, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return take(ctx, hot.Global())
	}
	granted, failed := 0, 0
	takes := takesByRoad(t, l, pool)
	for range 20 {
		for name, take := range takes {
			switch res, err := call(take); {
			case res.OK && err == nil:
				granted++
			case tellsOfANode(err):
				failed++
			default:
				t.Errorf("%s: %+v, %v, want a grant, or an error that tells of the worker", name, res, err)
			}
		}
	}
	t.Logf("%d takes were granted, %d failed", granted, failed)
	// Half of the shards are lost, and are the fullest. A take that finds one lost warns the next ones.
	if failed == 0 || granted <= failed {
		t.Errorf("%d takes were granted and %d failed: want some to fail, and fewer", granted, failed)
	}
	for name, take := range takesByRoad(t, limiter(t, ratelimit.Config{Citus: true}), pool) {
		if _, err := call(take); !tellsOfANode(err) {
			t.Errorf("%s of a program that has just started: %v, want an error that tells of the worker", name, err)
		}
	}

	if err := c[1].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	recovered(t, pool)
	if got := left(t, l, wide(t, pool)); !near(got, float64(8*share-before-granted)) {
		t.Errorf("%v tokens are left, after %d takes", got, before+granted)
	}
}
