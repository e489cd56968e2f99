package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
)

// What is refused is refused before anything is sent: nothing listens here.
func TestCoalescedRefuses(t *testing.T) {
	t.Parallel()
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	k := MustDefine("k", TokenBucket{Rate: 10, Period: time.Second}).For("k")
	ended, cancel := context.WithCancel(t.Context())
	cancel()

	full, closed := l.Coalesce(pool), l.Coalesce(pool)
	full.waiting.Store(mostWaiting)
	closed.Close()
	for name, c := range map[string]struct {
		c        *Coalesced
		ctx      context.Context
		requests []Request
		want     error
	}{
		"NoRequest": {l.Coalesce(pool), t.Context(), nil, ErrInvalid},
		"NoPool":    {l.Coalesce(nil), t.Context(), []Request{k}, ErrInvalid},
		"TooMany":   {l.Coalesce(pool), t.Context(), []Request{k.Count(11)}, ErrNeverGranted},
		"Ended":     {l.Coalesce(pool), ended, []Request{k}, context.Canceled},
		"Nested":    {l.Coalesce(pool), context.WithValue(t.Context(), outerKey{pool}, true), []Request{k}, ErrNested},
		"Full":      {full, t.Context(), []Request{k}, ErrOverloaded},
		"Closed":    {closed, t.Context(), []Request{k}, ErrClosed},
	} {
		if res, err := c.c.RateLimit(c.ctx, c.requests...); !errors.Is(err, c.want) || res.OK {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	if n := full.waiting.Load(); n != mostWaiting {
		t.Errorf("%d wait after one was refused", n)
	}
	c := l.Coalesce(pool)
	defer c.Close()
	if res, err := c.RateLimit(t.Context(), k); err == nil || res.OK || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("without a server: %+v, %v", res, err)
	}
}

// A new call joins those that wait for a held row, unless it is expected to be denied.
func TestAnExpectedDenialDoesNotJoinThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, expectedDenialDoesNotJoin) // in which the held row is not tried again before the timer is stopped
}

// withHeldRow returns a Coalesced in which a call waits for a held row, and what makes more calls.
func withHeldRow(t *testing.T) (c *Coalesced, call func(key string, count float64) *waiter) {
	t.Helper()
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	limit := MustDefine("joins", TokenBucket{Rate: 10, Period: time.Second})
	call = func(key string, count float64) *waiter {
		calls, err := resolveAll([]Request{limit.For(key).Count(count)})
		if err != nil {
			t.Fatal(err)
		}
		return &waiter{calls: calls}
	}
	c = l.Coalesce(nil)
	held := call("held", 1)
	held.state.Store(taken)
	c.held.hold(held, held.calls[0].Place, 0)
	c.held.timer.Stop()
	return c, call
}

func expectedDenialDoesNotJoin(t *testing.T) {
	c, call := withHeldRow(t)
	denied := call("held", 5)
	c.l.noted(&denied.calls[0], &algebra.Verdict{RetryAt: 1e6, After: algebra.Balance{PausedUntil: algebra.Open}})
	for _, tc := range []struct {
		name string
		w    *waiter
		want bool
	}{
		{"the same row", call("held", 1), true},
		{"another row", call("other", 1), false},
		{"the same row, denied", call("held", 5), false},
	} {
		if joins := c.held.join(tc.w); joins != tc.want {
			t.Errorf("%s: %v", tc.name, joins)
		}
	}
}

// A call that was tried again and joins those that wait for the row keeps the time since which it
// waits, so that a connection soon waits for its row.
func TestACallThatJoinsAgainKeepsItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, call := withHeldRow(t)
		w, since := call("held", 1), time.Now().Add(-time.Second)
		w.since = since
		if !c.held.join(w) || !w.since.Equal(since) {
			t.Errorf("it waits since %v, want %v", w.since, since)
		}
	})
}

// Nobody looks at held rows once Close has given them up.
func TestNoCallJoinsThoseThatCloseHasGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, call := withHeldRow(t)
		c.ended.Store(true)
		if c.held.join(call("held", 1)) {
			t.Error("it waits for a row that nobody tries again")
		}
	})
}

// The number of batches since a row was inserted is counted no further than it matters.
func TestUnmadeBatchesDoNotOverflow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := unconnected(t, func() {})
		c.unmade.Store(mostUnmade)
		calls, err := resolveAll([]Request{MustDefine("made", TokenBucket{Rate: 10, Period: time.Second}).For("k")})
		if err != nil {
			t.Fatal(err)
		}
		w := &waiter{calls: calls, done: make(chan struct{}, 1)}
		w.state.Store(taken)
		p := scheme{c: c, takes: []*standing{{c: &calls[0], count: 1, waiters: []*waiter{w}}}}
		p.foreseen()
		if n := c.unmade.Load(); n != mostUnmade {
			t.Errorf("counted to %d", n)
		}
	})
}

// A call is granted just as its context ends. Close waits until its tokens are given back.
func TestCloseWaitsForACallerThatGivesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		connects := 0
		c := unconnected(t, func() { connects++ })
		for i := range c.lanes {
			c.lanes[i].runner = 1 // the test decides in its place
		}
		ctx := &slowlyEnded{t.Context(), make(chan struct{}), make(chan struct{})}
		limit := MustDefine("ends", TokenBucket{Rate: 10, Period: time.Second})
		go func() {
			if res, err := c.RateLimit(ctx, limit.For("k")); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v, %v", res, err)
			}
		}()
		synctest.Wait()
		close(ctx.ends)
		synctest.Wait()
		for i := range c.lanes {
			for _, w := range c.lanes[i].queue {
				w.state.Store(taken)
				w.room()
				w.grant(0, algebra.Balance{Value: 9, TS: 1, PausedUntil: algebra.Open})
				c.answer(w)
			}
		}
		closed := make(chan struct{})
		go func() {
			c.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close has not waited")
		default:
		}
		close(ctx.goesOn)
		<-closed
		if connects == 0 {
			t.Error("nothing was given back before Close returned")
		}
		synctest.Wait()
	})
}

// While a connection waits for a held row, another one inserts the rows of first uses.
func TestFirstUsesDoNotWaitForAHeldRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		connects, wait := 0, make(chan struct{})
		c := unconnected(t, func() {
			connects++
			<-wait
		})
		limit := MustDefine("held", TokenBucket{Rate: 10, Period: time.Second})
		for i, most := range []int{0, 1} { // the second one may be inserted together with no other
			calls, err := resolveAll([]Request{limit.For(fmt.Sprint(i))})
			if err != nil {
				t.Fatal(err)
			}
			w := &waiter{calls: calls, since: time.Now().Add(-time.Minute), done: make(chan struct{}, 1)}
			w.state.Store(taken)
			c.held.hold(w, calls[0].Place, most)
			time.Sleep(50 * time.Millisecond)
			if synctest.Wait(); connects != i+1 {
				t.Errorf("%d connections, want %d", connects, i+1)
			}
		}
		close(wait)
		c.Close()
	})
}

// slowlyEnded is a context that ends with ends, and holds up who asks why until goesOn.
type slowlyEnded struct {
	context.Context
	ends, goesOn chan struct{}
}

func (c *slowlyEnded) Done() <-chan struct{} { return c.ends }

func (c *slowlyEnded) Err() error {
	select {
	case <-c.ends:
		<-c.goesOn
		return context.Canceled
	default:
		return nil
	}
}

// unconnected returns a Coalesced whose pool calls connect and never gets a connection. Call it in
// a bubble of synctest.
func unconnected(t *testing.T, connect func()) *Coalesced {
	t.Helper()
	return refusing(t, func() error {
		connect()
		return errors.New("no server")
	})
}

// refusing is a Coalesced whose connections are refused.
func refusing(t *testing.T, connect func() error) *Coalesced {
	t.Helper()
	cfg, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return connect() }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Coalesce(pool)
}

// What was taken from shards goes to the callers as if they had come one after the other, and adds
// up: of one shard if it has enough, else of several whose lines stay level.
func TestAllot(t *testing.T) {
	t.Parallel()
	of := func(capacity float64, row int32, count, owed float64) receipt {
		return receipt{Left: algebra.Left{Owed: owed}, call: call{
			Ask: algebra.Ask{Rule: algebra.Rule{Capacity: capacity}, Count: count}, Row: where.Row{Shard: row}}}
	}
	type piece struct {
		shard       int32
		count, owed float64
	}
	for name, tc := range map[string]struct {
		parts  []receipt
		counts []float64
		want   [][]piece
	}{
		"those that are there, of as few as can be": {
			[]receipt{of(2, 1, 2, 0), of(2, 2, 2, 0), of(2, 4, 1, -1)}, []float64{1, 2, 2, 0},
			[][]piece{{{1, 1, -1}}, {{2, 2, 0}}, {{1, 1, 0}, {4, 1, -1}}, {{4, 0, -1}}},
		},
		"in one line": {
			[]receipt{of(2, 1, 3, 1), of(2, 2, 3, 1)}, []float64{2, 2, 1, 1},
			[][]piece{{{1, 2, 0}}, {{2, 2, 0}}, {{1, 1, 1}}, {{2, 1, 1}}},
		},
		"more than a share": {
			[]receipt{of(1, 1, 2, 2), of(1, 4, 3, 4)}, []float64{0, 1, 1.5, 2.5},
			[][]piece{{{1, 0, 0}}, {{1, 1, 1}}, {{1, 0.75, 1.75}, {4, 0.75, 1.75}}, {{1, 0.25, 2}, {4, 2.25, 4}}},
		},
	} {
		var got [][]piece
		parts := tc.parts
		for _, n := range tc.counts {
			var own []receipt
			own, parts = allot(parts, n)
			var pieces []piece
			for _, p := range own {
				pieces = append(pieces, piece{p.Shard, p.Count, p.Owed})
			}
			got = append(got, pieces)
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Counts that do not add up exactly leave the last caller a little less than its own. It still takes
// from the shards, and not from the row of a limit without any.
func TestAllotTakesFromShardsWhateverIsRounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		parts := make([]receipt, rapid.IntRange(1, 6).Draw(t, "shards"))
		for k := range parts {
			p := &parts[k]
			p.Capacity, p.Shard = 2, int32(k+1)
			p.Count = rapid.Float64Range(0.001, 2).Draw(t, "count")
			p.Owed = -rapid.Float64Range(0, 1e-11).Draw(t, "left")
		}
		total := 0.0
		for _, k := range rapid.Permutation(slices.Clone(parts)).Draw(t, "order") {
			total += k.Count
		}
		for rest := total; rest > 0; {
			n := min(rest, rapid.SampledFrom([]float64{0, 1, 1.1, 3.3, 7}).Draw(t, "n"))
			rest -= n
			var own []receipt
			own, parts = allot(parts, n)
			sum := 0.0
			for _, p := range own {
				sum += p.Count
			}
			if len(own) == 0 || math.Abs(sum-n) > 1e-9 {
				t.Fatalf("%v tokens are %v of %d shards", n, sum, len(own))
			}
		}
	})
}

// A connection that a hook of the pool refuses answers all calls of the batch with its error.
func TestABatchWithoutAConnectionIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "42501"}
		c := refusing(t, func() error { return refused })
		limit := MustDefine("refused", TokenBucket{Rate: 10, Period: time.Second})
		p := scheme{c: c, lane: &c.lanes[0]}
		for _, key := range []string{"a", "b"} {
			calls, err := resolveAll([]Request{limit.For(key)})
			if err != nil {
				t.Fatal(err)
			}
			c.waiting.Add(1)
			c.running.Add(1)
			p.late = append(p.late, &waiter{calls: calls, done: make(chan struct{}, 1)})
		}
		all := slices.Clone(p.late)
		c.decide(&p)
		for _, w := range all {
			if <-w.done; !errors.Is(w.err, refused) {
				t.Errorf("%v, want the hook's error", w.err)
			}
			c.decided()
		}
		c.Close()
	})
}
