package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/lockout"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const failures = 5

// site is a sign-in on a database of its own, with alice, whose password is "right".
type site struct {
	*signIn
	accounts *accounts
	checked  atomic.Int64
	web      *httptest.Server
}

func newSite(t *testing.T, first time.Duration, configure ...func(*pgxpool.Config)) *site {
	t.Helper()
	pool := pgtest.Pool(t, configure...)
	if _, err := pool.Exec(t.Context(), accountTables); err != nil {
		t.Fatal(err)
	}
	s := &site{accounts: &accounts{pool: pool, iterations: 1000}}
	cfg := lockout.Config{Failures: failures, AddressFailures: 4 * failures, First: first}
	var err error
	s.signIn, err = newSignIn(pool, cfg, func(ctx context.Context, account, password string) (bool, error) {
		s.checked.Add(1)
		return s.accounts.check(ctx, account, password)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.within = time.Minute // a busy machine may stall for seconds
	if err := s.accounts.add(t.Context(), "alice", "right"); err != nil {
		t.Fatal(err)
	}
	s.web = httptest.NewServer(handler(s.signIn, slog.New(slog.NewTextHandler(io.Discard, nil))))
	t.Cleanup(s.web.Close)
	return s
}

// got is an answer, read and closed.
type got struct {
	StatusCode int
	Header     http.Header
	Cookies    []*http.Cookie
}

func (s *site) post(t *testing.T, account, password string) got {
	t.Helper()
	return s.postBody(t, "application/json",
		`{"account": `+strconv.Quote(account)+`, "password": `+strconv.Quote(password)+`}`)
}

func (s *site) postBody(t *testing.T, contentType, body string) got {
	t.Helper()
	resp, err := s.web.Client().Post(s.web.URL+"/signin", contentType, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return got{}
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return got{resp.StatusCode, resp.Header, resp.Cookies()}
}

func (s *site) want(t *testing.T, account, password string, status int) got {
	t.Helper()
	resp := s.post(t, account, password)
	if resp.StatusCode != status {
		t.Errorf("%s, %s: got %d, want %d", account, password, resp.StatusCode, status)
	}
	return resp
}

// left is how many attempts remain of those whom who names.
func (s *site) left(t *testing.T, who lockout.Who) int {
	t.Helper()
	state, err := s.guard.State(t.Context(), who)
	if err != nil {
		t.Fatal(err)
	}
	return state.Attempts
}

func alice(address string) lockout.Who {
	return lockout.Who{Account: "alice", Address: netip.MustParseAddr(address)}
}

const never = 1000 * time.Hour

func TestParallelGuessesCannotPassTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	var wg sync.WaitGroup
	var wrong, locked atomic.Int64
	for range 40 {
		wg.Go(func() {
			switch s.post(t, "alice", "guess").StatusCode {
			case http.StatusUnauthorized:
				wrong.Add(1)
			case http.StatusTooManyRequests:
				locked.Add(1)
			}
		})
	}
	wg.Wait()
	if s.checked.Load() != failures || wrong.Load() != failures || locked.Load() != 40-failures {
		t.Errorf("%d passwords were checked; %d wrong, %d locked out", s.checked.Load(), wrong.Load(), locked.Load())
	}
	s.want(t, "ALICE", "right", http.StatusTooManyRequests)
}

// A wrong password's attempt counts even if the program ends before it knows that the password is
// wrong.
func TestAFailedAttemptOutlivesACrash(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	crash := errors.New("crash")
	s.check = func(context.Context, string, string) (bool, error) { return false, crash }
	for range failures {
		if _, err := s.attempt(t.Context(), alice("192.0.2.1"), "guess"); !errors.Is(err, crash) {
			t.Fatal(err)
		}
	}
	var locked *lockout.LockedError
	if _, err := s.attempt(t.Context(), alice("192.0.2.2"), "right"); !errors.As(err, &locked) ||
		locked.Whose != "account" {
		t.Errorf("got %v, want alice locked out", err)
	}
}

// While a password is being checked, no row is locked and no connection held: the only one of the
// pool is free.
func TestASlowHashHoldsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, never, func(c *pgxpool.Config) { c.MaxConns = 1 })
	checking, done := make(chan struct{}), make(chan struct{})
	s.check = func(context.Context, string, string) (bool, error) {
		close(checking)
		<-done
		return true, nil
	}
	result := make(chan error, 1)
	go func() {
		_, err := s.attempt(t.Context(), alice("192.0.2.1"), "right")
		result <- err
	}()
	<-checking
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := s.guard.Begin(ctx, alice("192.0.2.1")); err != nil {
		t.Errorf("another attempt while one is checked: %v", err)
	}
	close(done)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestSuccessGivesBackTheAttemptAndForgivesTheAccountOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	account, address := lockout.Who{Account: "alice"}, lockout.Who{Address: netip.MustParseAddr("127.0.0.1")}
	for range failures - 1 {
		s.want(t, "alice", "guess", http.StatusUnauthorized)
	}
	resp := s.want(t, "alice", "right", http.StatusOK)
	if got := s.left(t, account); got != failures {
		t.Errorf("the account has %d attempts left, want all %d", got, failures)
	}
	if got := s.left(t, address); got != 4*failures-(failures-1) {
		t.Errorf("the address has %d attempts left, want its %d failures remembered", got, failures-1)
	}
	for range 3 * failures {
		s.want(t, "alice", "right", http.StatusOK) // costs nothing
	}
	var session string
	for _, c := range resp.Cookies {
		if c.Name == "session" && c.HttpOnly {
			session = c.Value
		}
	}
	var name string
	if err := s.pool.QueryRow(t.Context(), `SELECT account FROM session WHERE token = $1`, session).
		Scan(&name); err != nil || name != "alice" {
		t.Errorf("session %q is of %q (%v)", session, name, err)
	}
}

// The browser that she has signed in from keeps a cookie, with which the account's lock is nothing
// to her.
func TestABrowserThatHasSignedInIsKnownAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	var device string
	for _, c := range s.want(t, "alice", "right", http.StatusOK).Cookies {
		if c.Name == "device" && c.HttpOnly && c.SameSite == http.SameSiteStrictMode {
			device = c.Value
		}
	}
	for range failures {
		s.want(t, "alice", "guess", http.StatusUnauthorized)
	}
	s.want(t, "alice", "right", http.StatusTooManyRequests)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.web.URL+"/signin",
		strings.NewReader("account=Alice&password=right"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.AddCookie(&http.Cookie{Name: "device", Value: device})
	resp, err := s.web.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestAnAddressIsLockedOutOfAllAccounts(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	for i := range 4 * failures {
		s.want(t, "user"+strconv.Itoa(i), "guess", http.StatusUnauthorized)
	}
	s.want(t, "alice", "right", http.StatusTooManyRequests)
	if got := s.left(t, lockout.Who{Account: "alice"}); got != failures {
		t.Errorf("alice has %d attempts left: a denial for the address must not cost the account", got)
	}
	if _, err := s.attempt(t.Context(), alice("192.0.2.7"), "right"); err != nil {
		t.Errorf("from another address: %v", err)
	}
}

func TestRetryAfterIsWholeSecondsAndNeverEarly(t *testing.T) {
	t.Parallel()
	s := newSite(t, never-500*time.Millisecond)
	for range failures {
		s.want(t, "alice", "guess", http.StatusUnauthorized)
	}
	for _, header := range []string{
		s.want(t, "alice", "guess", http.StatusTooManyRequests).Header.Get("Retry-After"),
		s.want(t, "alice", "guess", http.StatusTooManyRequests).Header.Get("Retry-After"),
	} {
		if n, err := strconv.Atoi(header); err != nil || n > int(never.Seconds()) || n < int(never.Seconds())-600 {
			t.Errorf("Retry-After is %q, want up to %v seconds", header, never.Seconds())
		}
	}
}

func TestBadInputIsNoFailureOfOurs(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	for name, c := range map[string]struct{ contentType, body string }{
		"not JSON":       {"application/json", `account=alice`},
		"empty":          {"application/x-www-form-urlencoded", ``},
		"no password":    {"application/x-www-form-urlencoded", `account=alice`},
		"no account":     {"application/json", `{"account": " ", "password": "x"}`},
		"NUL":            {"application/x-www-form-urlencoded", `account=a%00b&password=x`},
		"NUL in JSON":    {"application/json", `{"account": "a\u0000b", "password": "x"}`},
		"not UTF-8":      {"application/x-www-form-urlencoded", `account=%ff%fe&password=x`},
		"long account":   {"application/x-www-form-urlencoded", `account=` + strings.Repeat("a", 101) + `&password=x`},
		"long password":  {"application/x-www-form-urlencoded", `account=alice&password=` + strings.Repeat("a", 201)},
		"large body":     {"application/x-www-form-urlencoded", `account=alice&password=` + strings.Repeat("a", 100_000)},
		"bad escape":     {"application/x-www-form-urlencoded", `account=%zz&password=x`},
		"something else": {"image/png", `account=alice&password=x`},
	} {
		if status := s.postBody(t, c.contentType, c.body).StatusCode; status != http.StatusBadRequest {
			t.Errorf("%s: got %d, want 400", name, status)
		}
	}
	if n := s.checked.Load(); n != 0 {
		t.Errorf("%d passwords were checked", n)
	}
}

// A database that is away lets nobody in, and is no denial.
func TestADatabaseFailureIs503(t *testing.T) {
	t.Parallel()
	s := newSite(t, never)
	if _, err := s.pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	resp := s.want(t, "alice", "right", http.StatusServiceUnavailable)
	if resp.Header.Get("Retry-After") != "" || len(resp.Cookies) != 0 {
		t.Errorf("answered with %v", resp.Header)
	}
}

func TestTheStory(t *testing.T) {
	t.Parallel()
	// A machine that stalls for seconds lets a lock end before the story has come to it: not each
	// of three times.
	for round := 1; ; round++ {
		began := time.Now()
		out, err := tellStory(t)
		if err == nil {
			return
		}
		if t.Logf("%v\n%s", err, out); round == 3 || time.Since(began) < brief.First {
			t.FailNow()
		}
	}
}

// tellStory tells it on a site of its own.
func tellStory(t *testing.T) (string, error) {
	t.Helper()
	s := newSite(t, brief.First)
	if err := s.accounts.add(t.Context(), "bob", "battery staple"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), `DELETE FROM account WHERE name = 'alice'`); err != nil {
		t.Fatal(err)
	}
	if err := s.accounts.add(t.Context(), "alice", "correct horse"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := (&story{out: &out, url: s.web.URL, http: s.web.Client(), hashes: s.checked.Load}).tell(t.Context())
	return out.String(), err
}
