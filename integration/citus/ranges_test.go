package citus

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var few = ratelimit.MustDefine("few", ratelimit.FixedWindow{Rate: 2, Period: 1000 * time.Hour,
	MaxReserved: ratelimit.Tokens(1)})

// batches counts the batches of coalesced calls.
type batches struct {
	mu sync.Mutex
	n  float64
}

func (b *batches) Decided(_ context.Context, e ratelimit.DecidedEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Together > 0 {
		b.n += 1 / float64(e.Together)
	}
}

func (b *batches) Transacted(context.Context, ratelimit.TransactedEvent) {}

// parked is the context of a call, and tells when the call waits for its answer.
type parked struct {
	context.Context
	once  sync.Once
	waits *sync.WaitGroup
}

// Done is asked for by a call that is about to wait: it has its place in line by then.
func (p *parked) Done() <-chan struct{} {
	p.once.Do(p.waits.Done)
	return p.Context.Done()
}

// came is what came of a crowd.
type came struct {
	granted []int // how often, by the key
	starved bool  // some calls failed, as the connection was not free in time: they took nothing
	slow    bool  // a busy machine took so long that how many batches there were says nothing
	batches int
}

// crowd has calls for n keys come while the pool's only connection is in use, so that each lane
// decides one, and then all others that it has.
func (b *batches) crowd(
	t *testing.T, pool *pgxpool.Pool, n int, call func(ctx context.Context, i int) (ratelimit.Result, error),
) came {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.n = 0
	b.mu.Unlock()
	var wg, waits sync.WaitGroup
	var starved atomic.Bool
	granted := make([]int, n)
	waits.Add(n)
	began := time.Now() // a lane that waits for the connection for long decides other calls beside that
	for i := range n {
		wg.Go(func() {
			ctx := &parked{Context: t.Context(), waits: &waits}
			defer ctx.Done() // also if it has not waited
			switch res, err := call(ctx, i); {
			case err != nil && strings.Contains(err.Error(), "no connection of the pool was free"):
				starved.Store(true)
			case err != nil:
				t.Error(err)
			case res.OK:
				granted[i] = 1
			}
		})
	}
	waits.Wait() // the more come by then, the more are decided together
	conn.Release()
	wg.Wait()
	slow := time.Since(began) > 500*time.Millisecond
	b.mu.Lock()
	defer b.mu.Unlock()
	return came{granted, starved.Load(), slow, int(math.Round(b.n))}
}

// Calls for keys that Citus keeps in one table are decided together, and each as if it were alone:
// first uses, takes, reservations, denials, and calls of two limits.
func TestCallsOfKeysInOneRangeAreDecidedTogether(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	var seen batches
	c := limiter(t, ratelimit.Config{Citus: true, Observer: &seen}).Coalesce(pool)
	t.Cleanup(c.Close)
	if err := c.Consume(t.Context(), ample.For("first")); err != nil { // it reads the ranges
		t.Fatal(err)
	}
	for try := 0; !seen.areTogether(t, pool, c, try); try++ {
		if try == 9 {
			t.Fatal("a busy machine has spoilt each of ten tries")
		}
	}
}

// areTogether has crowds of calls decided, for keys that no other try has. It returns false if the
// machine was too busy for the number of batches to say something.
func (b *batches) areTogether(t *testing.T, pool *pgxpool.Pool, c *ratelimit.Coalesced, try int) bool {
	t.Helper()
	const keys, ranges = 200, 4
	spoilt := false
	key := func(i int) string { return fmt.Sprint(try, "-", i) }
	for _, round := range []struct {
		name     string
		requests func(i int) []ratelimit.Request
		want     int
	}{
		{"first uses", func(i int) []ratelimit.Request { return []ratelimit.Request{few.For(key(i))} }, 1},
		{"two limits", func(i int) []ratelimit.Request {
			return []ratelimit.Request{few.For(key(i)), ample.For(key(i))}
		}, 1},
		{"denials", func(i int) []ratelimit.Request { return []ratelimit.Request{few.For(key(i))} }, 0},
		{"reservations", func(i int) []ratelimit.Request { return []ratelimit.Request{few.For(key(i)).OrReserve()} }, 1},
		{"reservations beyond", func(i int) []ratelimit.Request { return []ratelimit.Request{few.For(key(i)).OrReserve()} }, 0},
		{"denials again", func(i int) []ratelimit.Request { return []ratelimit.Request{few.For(key(i))} }, 0},
	} {
		r := b.crowd(t, pool, keys, func(ctx context.Context, i int) (ratelimit.Result, error) {
			return c.RateLimit(ctx, round.requests(i)...)
		})
		if r.starved { // so the next rounds have nothing to begin with
			return false
		}
		for i, got := range r.granted {
			if got != round.want {
				t.Errorf("%s: key %d was granted %d times, want %d", round.name, i, got, round.want)
			}
		}
		t.Logf("%s: %d calls in %d batches", round.name, keys, r.batches)
		switch many := r.batches > keys/10; {
		case many && r.slow:
			spoilt = true
		case many:
			t.Errorf("%s: %d calls for %d ranges were decided in %d batches", round.name, keys, ranges, r.batches)
		}
	}
	if sum := scan[float64](t, pool, `SELECT sum(value) FROM weir_balance WHERE name = 'few' AND key LIKE $1`,
		fmt.Sprint(try, "-%")); sum != -keys {
		t.Errorf("the keys have %v together, want %v", sum, -keys)
	}
	return !spoilt
}

// Somebody divides a range while calls go on: each is decided, none takes twice, and soon those of
// the new ranges are decided together.
func TestCallsGoOnWhileARangeIsDivided(t *testing.T) {
	cluster(t)
	t.Parallel()
	const keys = 200
	limit := ratelimit.MustDefine("divided", ratelimit.FixedWindow{Rate: 1000, Period: 1000 * time.Hour})
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	var seen batches
	c := limiter(t, ratelimit.Config{Citus: true, Observer: &seen}).Coalesce(pool)
	t.Cleanup(c.Close)
	calls, took := 0, 0
	take := func() (batches int) {
		r := seen.crowd(t, pool, keys, func(ctx context.Context, i int) (ratelimit.Result, error) {
			return c.RateLimit(ctx, limit.For(fmt.Sprint("k", i)))
		})
		for i, got := range r.granted {
			if took += got; got != 1 && !r.starved {
				t.Errorf("call %d for key %d was denied", calls, i)
			}
		}
		calls++
		return r.batches
	}
	take()
	take()
	divide(t, pool)
	divide(t, pool)
	take()
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		n := take()
		if t.Logf("%d batches", n); n <= keys/8 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls in %d batches, %v after", keys, n, patience)
		}
	}
	taken := scan[float64](t, pool, `SELECT sum(capacity - value) FROM weir_balance WHERE name = 'divided'`)
	if want := float64(took); taken != want {
		t.Errorf("%v tokens are taken, want %v", taken, want)
	}
}

// divide divides the first range of the balances in the middle.
func divide(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var id int64
	var middle string
	var node int
	if err := pool.QueryRow(t.Context(), `SELECT s.shardid, (shardminvalue::bigint + (shardmaxvalue::bigint - shardminvalue::bigint) / 2)::text, n.nodeid
		FROM pg_dist_shard s JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node n USING (groupid)
		WHERE logicalrelid = 'weir_balance'::regclass ORDER BY shardminvalue::integer LIMIT 1`).Scan(&id, &middle, &node); err != nil {
		t.Fatal(err)
	}
	ddl(t, pool, strings.NewReplacer("ID", fmt.Sprint(id), "MIDDLE", middle, "NODE", fmt.Sprint(node)).Replace(
		`SELECT citus_split_shard_by_split_points(ID, ARRAY['MIDDLE'], ARRAY[NODE, NODE], 'block_writes')`))
}
