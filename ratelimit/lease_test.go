package ratelimit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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
	c := s.calls[0]
	c.count, c.owed = n, -value
	b := newBlock(c, c.algebra, balance{value: value, ts: time.Now().UnixMicro()}, s.before())
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
	if _, err := s.Take(t.Context(), 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("closed: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func nan() float64 { zero := 0.0; return zero / zero }

// BenchmarkLeaseTake is a take from memory.
func BenchmarkLeaseTake(b *testing.B) {
	s := aLease(b, Config{}, MustDefine("leased", TokenBucket{Rate: 1e9, Period: time.Hour, Capacity: Tokens(1e12)}).For("k"))
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
