package ratelimit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// aPool is a pool that connects to nothing: who asks it for a connection fails.
func aPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func aLease(t testing.TB, cfg Config, request Request) *Lease {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Lease(aPool(t), request, LeaseConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fill puts n tokens into the hand that have left the row at value.
func (s *Lease) fill(n, value float64) {
	c := receipt{call: s.calls[0], Left: algebra.Left{Owed: -value}}
	c.Count = n
	b := newBlock(c, value, time.Now().UnixMicro(), s.before())
	s.hand = append(s.hand, b)
	s.sweep(s.now())
}

func TestBadLeasesAreRefused(t *testing.T) {
	t.Parallel()
	limit := MustDefine("leased", TokenBucket{Rate: 50, Period: time.Minute})
	pool := aPool(t)
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		pool    *pgxpool.Pool
		request Request
		cfg     LeaseConfig
		field   string
	}{
		"no pool":      {nil, limit.For("k"), LeaseConfig{}, "pool"},
		"zero request": {pool, Request{}, LeaseConfig{}, "limit"},
		"no key":       {pool, limit.For(""), LeaseConfig{}, "key"},
		"reserve":      {pool, limit.For("k").OrReserve(), LeaseConfig{}, "request"},
		"within":       {pool, limit.For("k").Within(time.Second), LeaseConfig{}, "request"},
		"leave":        {pool, limit.For("k").Leave(1), LeaseConfig{}, "request"},
		"credit":       {pool, limit.For("k").OnCredit(), LeaseConfig{}, "request"},
		"zero reserve": {pool, Request{}.OrReserve(), LeaseConfig{}, "request"},
		"negative":     {pool, limit.For("k"), LeaseConfig{Block: -1}, "LeaseConfig.Block"},
		"NaN":          {pool, limit.For("k"), LeaseConfig{Block: nan()}, "LeaseConfig.Block"},
		"large":        {pool, limit.For("k"), LeaseConfig{Block: 51}, "LeaseConfig.Block"},
	} {
		s, err := l.Lease(tc.pool, tc.request, tc.cfg)
		var invalid *InvalidError
		if s != nil || !errors.As(err, &invalid) || invalid.Field != tc.field {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	s, err := l.Lease(pool, limit.For("k").Count(1e9), LeaseConfig{}) // whose count does not matter
	if err != nil || s.most != 5 {
		t.Fatalf("%v, %v", s, err)
	}
	for _, n := range []float64{0, -1, nan(), 51, 1e-300} {
		if _, err := s.Take(t.Context(), n); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v tokens: %v", n, err)
		}
	}
	for name, tx := range map[string]pgx.Tx{"nil": nil, "another": &lazyTx{}} {
		if _, err := s.TakeInTx(t.Context(), tx, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.Take(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// What a transaction has taken from memory stays taken if it rolls back after Close: nobody gets it
// from a lease that is closed.
func TestWhatRollsBackAfterCloseIsNotHandedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := aLease(t, Config{}, MustDefine("rolls back", FixedWindow{Rate: 100, Period: 1000 * time.Hour}).For("k"))
		s.fill(10, 50)
		a := &attempt{}
		if res, ok, err := s.borrow(a, 10); !ok || err != nil || !res.OK {
			t.Fatal(res, ok, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		a.undone()
		if res, err := s.Take(t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("%+v, %v, want ErrClosed", res, err)
		}
	})
}

// arrives is an answer to the fetch that is under way, of count tokens: they left the row at value.
func (s *Lease) arrives(f *flight, count, value float64) {
	c := s.calls[0]
	c.Count = count
	took := took{Left: algebra.Left{Owed: -value}}
	s.arrive(f, Result{OK: true, At: time.Now(), Outcomes: []Outcome{{call: &c, took: took}}}, s.before(), s.now())
}

// Who waits is served in the order of arrival, also if what there is would be enough for those who
// came later: who asks for much is either granted or denied, and does not starve. A batch is of one
// block.
func TestTakesThatWaitAreServedInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// of blocks of 10
		s := aLease(t, Config{}, MustDefine("fair", FixedWindow{Rate: 100, Period: 1000 * time.Hour}).For("k"))
		s.flight = &flight{} // as if one was under way
		var waiters []*taker
		for _, n := range []float64{7, 1, 4, 10, 1, 1} {
			w, res, err := s.queue(t.Context(), n)
			if w == nil {
				t.Fatalf("%+v, %v", res, err)
			}
			waiters = append(waiters, w)
		}
		served := func() (n int) {
			for i, w := range waiters {
				select {
				case <-w.done:
					if n++; n != i+1 {
						t.Errorf("take %d was served before one that came earlier", i)
					}
				default:
				}
			}
			return n
		}
		f := s.plan()
		if f.need != 8 || len(f.batch) != 2 || f.beyond != 0 {
			t.Fatalf("%+v: want 7 and 1", f)
		}
		s.arrives(f, 7, 50) // only the first, though there would be enough for many others
		if n := served(); n != 1 {
			t.Errorf("%d were served, want 1", n)
		}
		f = s.plan()
		if f.need != 5 || len(f.batch) != 2 {
			t.Fatalf("%+v: want 1 and 4", f)
		}
		s.answer(waiters[1], Result{}, nil) // and 1 is in hand
		s.arrives(f, 5, 50)
		if n := served(); n != 3 || s.inHand() != 1 {
			t.Errorf("%d were served and %v are in hand, want 3 and 1", n, s.inHand())
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if res, err := s.Take(ended, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v: one that came later was served", res, err)
		}
		f = s.plan() // 10, of which 1 was in hand
		if f.need != 9 || len(f.batch) != 1 || s.inHand() != 0 {
			t.Fatalf("%+v: want what is missing to 10", f)
		}
		// It is denied; what it had got of the hand is there for those behind it.
		s.denied = refusal{n: 9, retryAt: time.Now().Add(time.Hour).UnixMicro(), value: 1,
			at: time.Now().UnixMicro(), told: s.now()}
		f = s.plan()
		if n := served(); n != 5 || waiters[3].res.OK || waiters[3].res.RetryAt.IsZero() || !waiters[4].res.OK {
			t.Errorf("%d were served, of which %+v and %+v", n, waiters[3].res, waiters[4].res)
		}
		if f == nil || f.need != 1 {
			t.Errorf("%+v: the row has 1 left", f)
		}
	})
}

// What a take has got of the hand expires while it waits for the rest, as it would in the hand.
func TestWhatAWaitingTakeHasGotExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := MustDefine("leased", TokenBucket{Rate: 100, Period: 10 * time.Second})
		s := aLease(t, Config{}, limit.For("k"))
		s.fill(5, 0)
		w := &taker{n: 10, missing: 10, done: make(chan struct{})}
		s.waiting = append(s.waiting, w)
		f := s.plan()
		if f == nil || f.need != 5 || len(w.got) == 0 {
			t.Fatalf("%+v, got %v: want 5 that are missing", f, w.got)
		}
		time.Sleep(20 * time.Second) // its row is held for so long, and full by then
		s.arrives(f, 5, 50)
		if !s.waits(w) || s.inHand() != 5 {
			t.Errorf("answered %+v, and %v are in hand: want it to wait for 5 more", w.res, s.inHand())
		}
		if f = s.plan(); f == nil || f.need != 5 {
			t.Errorf("%+v: want the 5 that have expired", f)
		}
		s.arrives(f, 5, 45)
		if !w.res.OK || s.inHand() != 0 {
			t.Errorf("%+v, and %v are in hand", w.res, s.inHand())
		}
		_ = s.Close(t.Context())
	})
}

// A fetch is as large as what was used lately, to last a while, and no larger than what makes a
// block of all that is in hand.
func TestBlocksAreAsLargeAsWhatIsUsed(t *testing.T) {
	t.Parallel()
	clock := time.UnixMicro(noon)
	s := aLease(t, Config{Clock: func() time.Time {
		return clock
	}}, MustDefine("sized", TokenBucket{Rate: 1000, Period: 1000 * time.Hour}).For("k"))
	s.flight = &flight{}
	ask := func(n float64) *flight {
		t.Helper()
		s.denied = refusal{}
		if _, _, err := s.queue(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		return s.plan()
	}
	for i, tc := range []struct {
		later        time.Duration
		n            float64
		need, beyond float64
	}{
		{0, 2, 2, 0},                      // nothing is known
		{10 * time.Millisecond, 2, 2, 18}, // 2 in 10 ms
		{time.Second, 3, 3, 0},            // 15 in hand were not used
		{time.Nanosecond, 1, 1, 99},       // at most a block
		{time.Hour, 500, 500, 0},          // or what is asked for
	} {
		clock = clock.Add(tc.later)
		f := ask(tc.n)
		if f == nil || f.need != tc.need || f.beyond != tc.beyond {
			t.Fatalf("%d: %+v, want %v and %v", i, f, tc.need, tc.beyond)
		}
		s.arrives(f, f.need+f.beyond, 100)
		s.hand, s.rest, s.used = nil, 0, 0
	}

	// Ahead, when less than half is in hand: no more than makes a block of both.
	s.last, s.low = s.now(), 50
	clock = clock.Add(100 * time.Millisecond)
	s.unit, s.used = 1, 1e6
	s.fill(60, 0)
	if f := s.plan(); f != nil {
		t.Errorf("%+v with 60 in hand", f)
	}
	s.gather(20, s.now())
	if f := s.plan(); f == nil || f.need != 0 || f.beyond != 60 {
		t.Errorf("%+v, want 60 ahead", f)
	}
}

// What is on its way back to the row is lost with the process as well, so a block is smaller by
// that.
func TestABlockLeavesRoomForWhatIsBeingGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, under := range map[string]func(s *Lease, b *block){
			"swept up":  func(s *Lease, b *block) { s.back = []*block{b} },
			"under way": func(s *Lease, b *block) { s.returning = []*block{b} },
		} {
			// of blocks of 100
			s := aLease(t, Config{}, MustDefine("sized", TokenBucket{Rate: 1000, Period: 1000 * time.Hour}).For("k"))
			s.fill(70, 0)
			under(s, s.hand[0])
			s.hand, s.rest, s.giving = nil, 0, true
			s.last, s.low, s.unit, s.used = s.now()-1, 50, 1, 1e6
			if f := s.plan(); f == nil || f.beyond != 30 {
				t.Errorf("%s: %+v, want 30: 70 are being given back", name, f)
			}
			s.flight = &flight{} // as if one was under way
			if _, _, err := s.queue(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			s.last, s.used = s.now()-1, 1e6
			if f := s.plan(); f == nil || f.need != 2 || f.beyond != 28 {
				t.Errorf("%s: %+v, want 2 for those who wait, and 28", name, f)
			}
		}
	})
}

func nan() float64 { zero := 0.0; return zero / zero }

// BenchmarkLeaseTake is a take from memory.
func BenchmarkLeaseTake(b *testing.B) {
	s := aLease(b, Config{}, MustDefine("leased",
		TokenBucket{Rate: 1e9, Period: time.Hour, Capacity: Tokens(1e12)}).For("k"))
	ctx := context.Background()
	s.low = 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%1e5 == 0 { // before it is given back
			s.hand = nil
			s.fill(1e9, 0)
		}
		if res, err := s.Take(ctx, 1); err != nil || !res.OK {
			b.Fatal(res, err)
		}
	}
}

// Where nothing answers, each take without a deadline ends after Config.Timeout, however many wait
// before it.
func TestTakesThatWaitEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/none")
		if err != nil {
			t.Fatal(err)
		}
		cfg.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
			<-ctx.Done()
			return ctx.Err()
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		const timeout = time.Second
		l, err := New(Config{Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		limit := MustDefine("waits in time", TokenBucket{Rate: 10, Period: time.Second})
		s, err := l.Lease(pool, limit.Global(), LeaseConfig{Block: 1})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if res, err := s.Take(context.Background(), 1); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%+v, %v", res, err)
				}
				if d := time.Since(began); d > timeout+time.Millisecond {
					t.Errorf("it has waited for %v", d)
				}
			})
		}
		wg.Wait()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
