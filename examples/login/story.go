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

	"github.com/weir-go/weir/lockout"
)

// story drives a server by real requests and tells what happens.
type story struct {
	out  io.Writer
	url  string
	http *http.Client

	hashes func() int64 // how many passwords were checked so far
}

// brief are the numbers of the story, which has to end while you watch. Production's are the
// defaults.
var brief = lockout.Config{Failures: 5, AddressFailures: 20, First: 5 * time.Second}

type reply struct {
	status     int
	message    string
	retryAfter time.Duration
	device     *http.Cookie // which the browser keeps
}

// post is from a browser that has the cookies.
func (s *story) post(
	ctx context.Context, account, password string, cookies ...*http.Cookie,
) (reply, error) {
	body := url.Values{"account": {account}, "password": {password}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/signin",
		strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, c := range cookies {
		req.AddCookie(c)
	}
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
	r := reply{resp.StatusCode, in.Message, time.Duration(seconds) * time.Second, nil}
	for _, c := range resp.Cookies() {
		if c.Name == "device" {
			r.device = c
		}
	}
	return r, nil
}

func (s *story) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }

// expect posts and says what came of it.
func (s *story) expect(
	ctx context.Context, who, account, password string, status int, cookies ...*http.Cookie,
) (reply, error) {
	r, err := s.post(ctx, account, password, cookies...)
	if err != nil {
		return r, err
	}
	s.say("  %-46s %d  %s", who, r.status, r.message)
	if r.status != status {
		return r, fmt.Errorf("%s: got %d, want %d", who, r.status, status)
	}
	return r, nil
}

// attack guesses Alice's password, 20 times at once.
func (s *story) attack(ctx context.Context) error {
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
	if checked != int64(brief.Failures) || checked != int64(statuses[http.StatusUnauthorized]) {
		return fmt.Errorf("%d passwords were checked; the limit is %d", checked, brief.Failures)
	}
	return nil
}

func (s *story) tell(ctx context.Context) error {
	s.say("A sign-in allows an account %d failures, and an address %d, before it is locked for %v, and then for twice as long.",
		brief.Failures, brief.AddressFailures, brief.First)

	s.say("\nAlice errs, then remembers. Her failure is forgiven.")
	if _, err := s.expect(ctx, "alice, wrong password", "alice", "guess",
		http.StatusUnauthorized); err != nil {
		return err
	}
	alice, err := s.expect(ctx, "alice, right password", "Alice", "correct horse", http.StatusOK)
	if err != nil {
		return err
	}

	s.say("\nAn attacker guesses Alice's password, 20 times at once.")
	if err := s.attack(ctx); err != nil {
		return err
	}

	s.say(
		"\nThe account is locked, for its owner too, but not in the browser that she has signed in from. Other accounts are not.",
	)
	locked, err := s.expect(ctx, "alice, right password, another browser", "alice", "correct horse",
		http.StatusTooManyRequests)
	if err != nil {
		return err
	}
	if _, err := s.expect(ctx, "alice, right password, her browser", "alice", "correct horse",
		http.StatusOK, alice.device); err != nil {
		return err
	}
	if _, err := s.expect(ctx, "bob, right password, same address", "bob", "battery staple",
		http.StatusOK); err != nil {
		return err
	}

	s.say(
		"\nThe attacker goes through other accounts, until the address is locked. None of them is.",
	)
	var address reply
	for i := range brief.AddressFailures + 1 {
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
	s.say("\nAfter the %v of Retry-After, Alice signs in from anywhere.", wait)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err = s.expect(ctx, "alice, right password, another browser", "alice", "correct horse",
		http.StatusOK); err != nil {
		return err
	}

	s.say("\nThe attacker goes on. The lock is twice as long.")
	if err := s.attack(ctx); err != nil {
		return err
	}
	again, err := s.expect(ctx, "alice, right password, another browser", "alice", "correct horse",
		http.StatusTooManyRequests)
	if err != nil {
		return err
	}
	if again.retryAfter <= brief.First {
		return fmt.Errorf("the second lock lasts for %v", again.retryAfter)
	}
	_, err = s.expect(ctx, "alice, right password, her browser", "alice", "correct horse",
		http.StatusOK, alice.device)
	return err
}
