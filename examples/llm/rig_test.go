package main

import (
	"bytes"
	"context"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/examples/llm/standin"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// demo has a database of its own. The API of each demo has a name of its own, too, with which the
// names of its limits begin: jobs that wait go by the newest rule that the process has defined for a
// name, and the tests run at the same time.
func demo(t *testing.T) *store {
	t.Helper()
	s, err := open(t.Context(), pgtest.Server(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run serves until all is answered, and returns what it has said; log is nil if the API is none of
// standin's.
func (s *store) run(t *testing.T, o options, base string, log *standin.Log) (string, error) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := serve(ctx, &progress{out: &out, start: time.Now()}, o, s, base, func() float64 { return -1 }, log)
	t.Log(out.String())
	return out.String(), err
}

// standIn starts an API with the budget.
func standIn(t *testing.T, b budget) *standin.Server {
	t.Helper()
	api, err := standin.Start(standin.NewLog(b.minute, b.tokens, b.requests), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Stop() })
	return api
}

// reserve takes n times the largest request, for nobody: a line to begin with.
func (s *store) reserve(t *testing.T, o options, n int) (last ratelimit.Result) {
	t.Helper()
	limits, err := define(o.budget, o.shards)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if last, err = limiter.Autocommit(s.pool).RateLimit(t.Context(),
			limits.chatTokens.Global().Count(largest).OrReserve()); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// keepLine reserves the largest request whenever the line is shorter than n of them, until done is
// closed. It returns how often, and how often it has found the line empty.
func (s *store) keepLine(t *testing.T, o options, n int, done <-chan struct{}) (times, empty int) {
	limits, err := define(o.budget, o.shards)
	if err != nil {
		t.Error(err)
		return 0, 0
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Error(err)
		return 0, 0
	}
	tokens, one := limiter.Autocommit(s.pool), limits.chatTokens.Global().Count(largest).OrReserve()
	for {
		select {
		case <-done:
			return times, empty
		case <-time.After(10 * time.Millisecond):
		}
		res, err := tokens.CheckRateLimit(t.Context(), one.Count(0))
		for err == nil && res.Outcomes[0].Value > float64(-n*largest) {
			if res, err = tokens.RateLimit(t.Context(), one); err == nil {
				times++
				if res.Outcomes[0].Value >= -largest {
					empty++
				}
			}
		}
		if err != nil {
			t.Error(err)
			return times, empty
		}
	}
}

// balance sums up what the messages have used.
func (s *store) balance(t *testing.T, o options) books {
	t.Helper()
	limits, err := define(o.budget, o.shards)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := s.books(t.Context(), limits.chatTokens)
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

func (s *store) scan(t *testing.T, sql string, into ...any) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), sql).Scan(into...); err != nil {
		t.Fatal(err)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6 }

// stalls asks the database a hundred times a second, until the returned function is called, which says
// how long it took at most.
func (s *store) stalls(t *testing.T) func() time.Duration {
	done, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for began := time.Now(); ; began = time.Now() {
			select {
			case <-done:
				longest <- most
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := s.pool.Exec(t.Context(), `SELECT`); err != nil {
				t.Error(err)
			}
			most = max(most, time.Since(began)-10*time.Millisecond)
		}
	}()
	return func() time.Duration { close(done); return <-longest }
}
