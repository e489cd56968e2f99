package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// story drives a server by real requests and tells what happens.
type story struct {
	out  io.Writer
	url  string
	http *http.Client

	failures int
	hashes   func() int64 // how many passwords were checked so far
}

type reply struct {
	status     int
	message    string
	retryAfter time.Duration
}

func (s *story) post(ctx context.Context, account, password string) (reply, error) {
	body := url.Values{"account": {account}, "password": {password}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/signin", strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := s.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	var in struct{ Message string }
	if err := json.NewDecoder(resp.Body).Decode(&in); err != nil {
		return reply{}, err
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return reply{resp.StatusCode, in.Message, time.Duration(seconds) * time.Second}, nil
}

func (s *story) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }

// expect posts and says what came of it.
func (s *story) expect(ctx context.Context, who, account, password string, status int) (reply, error) {
	r, err := s.post(ctx, account, password)
	if err != nil {
		return r, err
	}
	s.say("  %-46s %d  %s", who, r.status, r.message)
	if r.status != status {
		return r, fmt.Errorf("%s: got %d, want %d", who, r.status, status)
	}
	return r, nil
}

func (s *story) tell(ctx context.Context) error {
	s.say("A sign-in allows an account %d failures, and an address %d, before it has to wait.", s.failures, 4*s.failures)

	s.say("\nAlice errs, then remembers. Her failure is forgiven.")
	if _, err := s.expect(ctx, "alice, wrong password", "alice", "guess", http.StatusUnauthorized); err != nil {
		return err
	}
	for range 2 {
		if _, err := s.expect(ctx, "alice, right password", "Alice", "correct horse", http.StatusOK); err != nil {
			return err
		}
	}

	s.say("\nAn attacker guesses Alice's password, 20 times at once.")
	before := s.hashes()
	statuses := map[int]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	for i := range 20 {
		wg.Go(func() {
			r, err := s.post(ctx, "alice", fmt.Sprint("guess ", i))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			}
			statuses[r.status]++
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	checked := s.hashes() - before
	s.say("  %d were told that they are wrong, %d that they are too many; %d passwords were checked.",
		statuses[http.StatusUnauthorized], statuses[http.StatusTooManyRequests], checked)
	// a token may flow in while they come
	if checked > int64(s.failures)+2 || checked != int64(statuses[http.StatusUnauthorized]) {
		return fmt.Errorf("%d passwords were checked; the limit is %d", checked, s.failures)
	}

	s.say("\nThe account is locked, for its owner too; other accounts are not.")
	locked, err := s.expect(ctx, "alice, right password", "alice", "correct horse", http.StatusTooManyRequests)
	if err != nil {
		return err
	}
	if _, err := s.expect(ctx, "bob, right password, same address", "bob", "battery staple", http.StatusOK); err != nil {
		return err
	}

	s.say("\nThe attacker goes through other accounts, until the address is locked. None of them is.")
	var address reply
	for i := range 5 * s.failures {
		if address, err = s.post(ctx, fmt.Sprint("user", i), "123456"); err != nil {
			return err
		}
		if address.status == http.StatusTooManyRequests {
			s.say("  after %d accounts: %-28s %d  %s", i, "", address.status, address.message)
			break
		}
	}
	if address.status != http.StatusTooManyRequests {
		return fmt.Errorf("the address was never locked")
	}

	wait := max(locked.retryAfter, address.retryAfter)
	s.say("\nAfter the %v of Retry-After, Alice signs in.", wait)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err = s.expect(ctx, "alice, right password", "alice", "correct horse", http.StatusOK)
	return err
}
