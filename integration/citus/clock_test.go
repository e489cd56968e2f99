package citus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

// skew is by how much the clock of one worker is ahead of the coordinator's and of this program's,
// and by how much that of the other worker is behind.
const skew = 2 * time.Second

// node is one of a cluster whose clocks differ.
type node struct {
	name  string
	pool  *pgxpool.Pool
	ahead time.Duration
}

// now is what the node's clock shows, in the microseconds of Postgres.
func (n *node) now() time.Time { return time.Now().Add(n.ahead).Truncate(time.Microsecond) }

// skewed is a cluster of which each node has another clock.
func skewed(t *testing.T) []*node {
	t.Helper()
	c, pool := killable(t, pgserver.Node(1, pgtest.Faketime(t, "+2s")),
		pgserver.Node(2, pgtest.Faketime(t, "-2s")))
	nodes := []*node{{"Coordinator", pool, 0}, {"Ahead", nil, skew}, {"Behind", nil, -skew}}
	for i, n := range nodes {
		if i > 0 {
			var err error
			if n.pool, err = pgxpool.New(t.Context(), c[i].URL()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.pool.Close)
		}
		from := n.now()
		at := scan[time.Time](t, n.pool, `SELECT clock_timestamp()`)
		during(t, "the node "+n.name, at, from, n.now())
	}
	return nodes
}

func during(t testing.TB, what string, at, from, to time.Time) {
	t.Helper()
	if at.Before(from) || at.After(to) {
		t.Errorf("%s: the clock is %v ahead of when it was asked, and %v behind when it had answered", what,
			at.Sub(from), to.Sub(at))
	}
}

// keysOn returns a key that begins with prefix for each worker, whose rows are there.
func keysOn(t testing.TB, nodes []*node, prefix string) (keys []string) {
	t.Helper()
	for _, worker := range nodes[1:] {
		for i := 0; ; i++ {
			key := fmt.Sprint(prefix, " ", i)
			if portOf(t, nodes[0].pool, key) == int(worker.pool.Config().ConnConfig.Port) {
				keys = append(keys, key)
				break
			}
		}
	}
	return keys
}

// A road is one way of calling.
type road struct {
	name string
	call func(context.Context, func(ratelimit.Verbs) error) error
}

// batched takes by SendBatch.
type batched struct {
	ratelimit.Verbs
	l    *ratelimit.Limiter
	pool *pgxpool.Pool
}

func (b batched) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	return b.l.SendBatch(ctx, b.pool, func(b *pgx.Batch) error { b.Queue(`SELECT 1`); return nil }, requests...)
}

func roads(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) []road {
	coalesced := l.Coalesce(pool)
	t.Cleanup(coalesced.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	own := func(level pgx.TxIsoLevel) func(context.Context, func(ratelimit.Verbs) error) error {
		return func(ctx context.Context, fn func(ratelimit.Verbs) error) error {
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error { return fn(l.In(tx)) })
		}
	}
	of := func(v ratelimit.Verbs) func(context.Context, func(ratelimit.Verbs) error) error {
		return func(_ context.Context, fn func(ratelimit.Verbs) error) error { return fn(v) }
	}
	return []road{
		{"Own", own(pgx.ReadCommitted)},
		{"InTx", func(ctx context.Context, fn func(ratelimit.Verbs) error) error {
			return l.InTx(ctx, pool, func(_ context.Context, tx pgx.Tx) error { return fn(l.In(tx)) })
		}},
		{"RepeatableRead", func(ctx context.Context, fn func(ratelimit.Verbs) error) error {
			return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead},
				func(_ context.Context, tx pgx.Tx) error { return fn(l.In(tx)) })
		}},
		{"Autocommit", of(l.Autocommit(pool))},
		{"Coalesced", of(coalesced)},
		{"SendBatch", of(batched{l.Autocommit(pool), l, pool})},
		{"InSQLTx", func(ctx context.Context, fn func(ratelimit.Verbs) error) error {
			return l.InSQLTx(ctx, db, nil, func(_ context.Context, tx *sql.Tx) error { return fn(l.InSQL(tx)) })
		}},
	}
}

// interval is that of a token: less than the clocks differ by.
const interval = 1500 * time.Millisecond

// Whatever the clock of the node that has a row: grants and denials, and what checks and reads
// answer, go by the clock of the node that the caller is connected to.
func TestTheClockOfTheNodeConnectedToDecides(t *testing.T) {
	nodes := skewed(t)
	rule := ratelimit.TokenBucket{Rate: 2, Period: 2 * interval}
	bucket, window := ratelimit.MustDefine("bucket", rule),
		ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 1, Period: interval})
	sharded := ratelimit.MustDefine("sharded", rule, ratelimit.Shards(2))
	for _, from := range nodes {
		l := limiter(t, ratelimit.Config{Citus: true})
		for _, r := range roads(t, l, from.pool) {
			name := from.name + r.name
			t.Run(name, func(t *testing.T) {
				for _, key := range keysOn(t, nodes, name) {
					decides(t, from, r, bucket.For(key), true)
					decides(t, from, r, window.For(key), true)
					decides(t, from, r, sharded.For(key), false)
				}
				decides(t, from, r, ratelimit.MustDefine("global "+name, rule).Global(), true)
				decides(t, from, r, ratelimit.MustDefine("spread "+name, rule, ratelimit.Shards(2)).Global(), false)
			})
		}
	}
}

// decides takes one token after the other until two calls are denied, and then reads. Each answer
// must be that of the arithmetic at a time when the call was under way. That of shards may be
// stricter: one may be full while the other is not.
func decides(t *testing.T, from *node, r road, q ratelimit.Request, exact bool) {
	t.Helper()
	ctx := t.Context()
	var state ratelimit.State
	ask := func(what string, verb func(ratelimit.Verbs) (ratelimit.Result, error)) (granted bool, left ratelimit.State) {
		what += " " + q.String()
		var res ratelimit.Result
		began := from.now()
		err := r.call(ctx, func(v ratelimit.Verbs) (err error) {
			res, err = verb(v)
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		during(t, what, res.At, began, from.now())
		want, err := ratelimit.Decide(q, state, res.At)
		if err != nil {
			t.Fatal(err)
		}
		early := want.RetryAt.Sub(res.RetryAt)
		switch {
		case res.OK && !want.OK:
			t.Errorf("%s: granted %v too early", what, want.RetryAt.Sub(res.At))
		case exact && res.OK != want.OK:
			t.Errorf("%s: denied, where there is a token", what)
		case res.OK || want.OK:
		case exact && early != 0, early > time.Microsecond, early < -interval:
			t.Errorf("%s: RetryAt is %v too early", what, early)
		}
		return res.OK, want.State
	}
	for denied := 0; denied < 2; {
		granted, left := ask("take",
			func(v ratelimit.Verbs) (ratelimit.Result, error) { return v.RateLimit(ctx, q) })
		if granted {
			state = left
		} else {
			denied++
		}
	}
	ask("check", func(v ratelimit.Verbs) (ratelimit.Result, error) { return v.CheckRateLimit(ctx, q) })
	began := from.now()
	err := r.call(ctx, func(v ratelimit.Verbs) error {
		now, err := v.Value(ctx, q)
		if ended := from.now(); err == nil && q.Limit().Name() != "window" { // whose TS is its beginning
			during(t, "value "+q.String(), now.TS, began, ended)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Lines and package inspect go by that clock, too, and Prune deletes nothing that is not full by it.
func TestOthersGoByTheClockOfTheNodeConnectedTo(t *testing.T) {
	nodes := skewed(t)
	ctx := t.Context()
	l := limiter(t, ratelimit.Config{Citus: true})
	for _, limit := range []ratelimit.Limit{
		ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 1, Period: interval}),
		ratelimit.MustDefine("sharded", ratelimit.TokenBucket{Rate: 2, Period: interval}, ratelimit.Shards(2)),
	} {
		for _, from := range nodes {
			reader, err := inspect.New(from.pool, inspect.Config{})
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keysOn(t, nodes, from.name) {
				what := fmt.Sprint(from.name, ", ", limit.For(key))
				// Until Prune is quicker than the balance, which is full after an interval.
				for late := true; late; {
					// Those of an earlier key or attempt may be full by now.
					if _, err := from.pool.Exec(ctx, `DELETE FROM weir_balance`); err != nil {
						t.Fatal(err)
					}
					res, err := l.Autocommit(from.pool).RateLimit(ctx, limit.For(key))
					if err != nil {
						t.Fatal(err)
					}
					began := from.now()
					b, err := reader.Balance(ctx, limit.Name(), key)
					if err != nil {
						t.Fatal(err)
					}
					during(t, what+", inspect", b.At, began, from.now())
					done, err := l.Prune(ctx, from.pool, ratelimit.PruneConfig{Share: 1})
					if err != nil {
						t.Fatal(err)
					}
					late = !res.OK || !from.now().Before(res.At.Add(interval))
					if !late && done.Deleted > 0 {
						t.Errorf("%s: %d rows were pruned before they were full", what, done.Deleted)
					}
				}
				began := from.now()
				_, at, err := l.Lines(ctx, from.pool, ratelimit.Take{Limit: limit.Name(), Key: key})
				if err != nil {
					t.Fatal(err)
				}
				during(t, what+", Lines", at, began, from.now())
			}
			for scan[int](t, from.pool, `SELECT count(*) FROM weir_balance`) > 0 { // until all of them are full, and gone
				if _, err := l.Prune(ctx, from.pool, ratelimit.PruneConfig{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// A slot that is held by that clock is held, whatever the clock of the worker that has its row shows.
func TestSlotsGoByTheClockOfTheNodeConnectedTo(t *testing.T) {
	nodes := skewed(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	one := slots.MustDefine("slot", 1)
	for _, from := range nodes {
		s, err := slots.New(from.pool, slots.Config{TTL: 2 * skew})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keysOn(t, nodes, from.name) {
			hold, err := s.TryAcquire(ctx, one.For(key))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.TryAcquire(ctx, one.For(key)); !errors.Is(err, slots.ErrFull) {
				t.Errorf("%s, %s: %v, want ErrFull", from.name, key, err)
			}
			if err := hold.Release(ctx); err != nil {
				t.Errorf("%s, %s: %v", from.name, key, err)
			}
			if hold, err = s.TryAcquire(ctx, one.For(key)); err != nil {
				t.Fatal(err)
			}
			if err := hold.Release(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}
