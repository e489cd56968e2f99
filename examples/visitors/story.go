package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// story drives a server by real requests and tells what happens.
type story struct {
	out  io.Writer
	url  string
	pool *pgxpool.Pool
}

func (s *story) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }

// expect says what came of a request.
func (s *story) expect(who string, want int, r reply, err error) error {
	if err != nil {
		return err
	}
	s.say("  %-58s %d", who, r.status)
	if r.status != want {
		return fmt.Errorf("%s: got %d, want %d: %s", who, r.status, want, r.body)
	}
	return nil
}

func (s *story) tell(ctx context.Context) error {
	s.say("A visitor has %d requests a minute, and an address %d sessions an hour for nothing.",
		requests, sessions)
	for _, part := range []func(context.Context) error{s.keeper, s.dropper, s.neighbour, s.replay, s.flood} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) keeper(ctx context.Context) error {
	s.say(
		"\nAlice comes without a session, gets one, and keeps its cookie. She moves to another network, and needs a new one there.",
	)
	alice := newClient(s.url, "203.0.113.7", nil)
	r, err := alice.visit(ctx)
	if err := s.expect("alice, without a session", http.StatusForbidden, r, err); err != nil {
		return err
	}
	r, err = alice.begin(ctx)
	if err := s.expect("a session for alice", http.StatusNoContent, r, err); err != nil {
		return err
	}
	for i := range requests {
		r, err = alice.visit(ctx)
		if err := s.expect(fmt.Sprintf("alice, request %d", i+1), http.StatusOK, r,
			err); err != nil {
			return err
		}
	}
	r, err = alice.visit(ctx)
	if err := s.expect(fmt.Sprintf("alice, request %d", requests+1), http.StatusTooManyRequests, r,
		err); err != nil {
		return err
	}
	alice.from = "203.0.113.8"
	r, err = alice.visit(ctx)
	return s.expect("alice, from another address", http.StatusForbidden, r, err)
}

func (s *story) dropper(ctx context.Context) error {
	s.say("\nMallory, at Alice's first address, drops his cookie to be a new visitor each time.")
	mallory := newClient(s.url, "203.0.113.7", nil)
	for i := range sessions {
		want := http.StatusNoContent
		if i == sessions-1 { // one was Alice's
			want = http.StatusTooManyRequests
		}
		mallory.drop()
		r, err := mallory.begin(ctx)
		if err := s.expect(fmt.Sprintf("mallory, session %d", i+1), want, r, err); err != nil {
			return err
		}
	}
	for _, made := range []string{"x", "v1.session.e30.AAAA"} {
		r, err := mallory.visitWith(ctx, made)
		if err := s.expect("mallory, with the cookie "+made, http.StatusForbidden, r,
			err); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) neighbour(ctx context.Context) error {
	s.say(
		"\nBob shares that address. His program solves a challenge, and his session goes with him.",
	)
	bob := newClient(s.url, "203.0.113.7", nil)
	began := time.Now()
	r, err := bob.earn(ctx)
	if err := s.expect("a session for bob, for some work", http.StatusNoContent, r,
		err); err != nil {
		return err
	}
	s.say("  it took him %v", time.Since(began).Round(time.Millisecond))
	for _, bob.from = range []string{"203.0.113.7", "2001:db8::1"} {
		r, err := bob.visit(ctx)
		if err := s.expect("bob, from "+bob.from, http.StatusOK, r, err); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) replay(ctx context.Context) error {
	const times = 20
	s.say("\nMallory solves a challenge once, and sends its solution %d times at once.", times)
	solver := newClient(s.url, "203.0.113.7", nil)
	solution, err := solver.solution(ctx)
	if err != nil {
		return err
	}
	statuses := make([]int, times)
	var wg sync.WaitGroup
	for i := range times {
		wg.Go(func() {
			if r, err := newClient(s.url, solver.from, nil).do(ctx, http.MethodPost,
				"/session/solved", solution); err == nil {
				statuses[i] = r.status
			}
		})
	}
	wg.Wait()
	count := map[int]int{}
	for _, status := range statuses {
		count[status]++
	}
	s.say("  %d made a session, %d were told that it has made one", count[http.StatusNoContent],
		count[http.StatusForbidden])
	if count[http.StatusNoContent] != 1 || count[http.StatusForbidden] != times-1 {
		return fmt.Errorf("a challenge that was solved once: %v", count)
	}
	return nil
}

func (s *story) flood(ctx context.Context) error {
	const flood = 2000
	s.say("\nMallory sends %d requests with made-up cookies, from an address of his own.", flood)
	before, err := s.rows(ctx)
	if err != nil {
		return err
	}
	mallory := newClient(s.url, "198.51.100.1", nil)
	count := map[int]int{}
	for i := range flood {
		r, err := mallory.visitWith(ctx, fmt.Sprintf("v1.session.%d.%d", i, i))
		if err != nil {
			return err
		}
		count[r.status]++
	}
	after, err := s.rows(ctx)
	if err != nil {
		return err
	}
	s.say("  %d were told that they have no session, %d that the address is too many; the table has %d row more.",
		count[http.StatusForbidden], count[http.StatusTooManyRequests], after-before)
	if after-before != 1 || count[http.StatusForbidden]+count[http.StatusTooManyRequests] != flood {
		return fmt.Errorf("a flood made %d rows, and was answered %v", after-before, count)
	}
	return nil
}

func (s *story) rows(ctx context.Context) (n int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT count(*) FROM weir_balance`).Scan(&n)
	return n, err
}
