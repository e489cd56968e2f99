package httplimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/upstream"
	"github.com/weir-go/weir/weirtest"
)

func number(t *testing.T, h http.Header, name string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(h.Get(name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return time.Duration(n) * time.Second
}

// What the fields say is so: by the database's decisions r requests are granted and no more, t
// seconds later there is one again, a second earlier there is none, and who comes at Retry-After is
// served.
func TestWhatTheFieldsSayIsSo(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, rule := range map[string]ratelimit.Rule{
		"Bucket":       ratelimit.TokenBucket{Rate: 7, Period: time.Minute, Capacity: ratelimit.Tokens(4)},
		"BucketOfOne":  ratelimit.TokenBucket{Rate: 1, Period: 5 * time.Second},
		"Window":       ratelimit.FixedWindow{Rate: 3, Period: time.Minute, Start: start.Add(-20 * time.Second)},
		"WindowPhased": ratelimit.FixedWindow{Rate: 3, Period: 90 * time.Second},
		"WindowSaved":  ratelimit.FixedWindow{Rate: 2, Period: 10 * time.Second, Capacity: ratelimit.Tokens(5)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := weirtest.NewClock(start)
			g := &httplimit.Guard{Limiter: limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pgtest.Pool(t))}
			h := g.Limit(httplimit.By(ratelimit.MustDefine(name, rule), user("u")))(ok)
			old := &httplimit.Guard{Limiter: g.Limiter, Fields: httplimit.Legacy}
			for round := range 5 {
				resp := get(h)
				left := params(t, resp)["r"]
				for ; left > 0; left-- {
					if resp = get(h); resp.status != 200 || params(t, resp)["r"] != left-1 {
						t.Fatalf("round %d: %d %v with %d left", round, resp.status, resp.header, left)
					}
				}
				granted := params(t, resp)
				resp = get(h)
				p := params(t, resp)
				after, reset := number(t, resp.header, "Retry-After"), time.Duration(p["t"])*time.Second
				if resp.status != 429 || p["r"] != 0 || p["t"] != granted["t"] || after < reset {
					t.Fatalf("round %d: %d %v after %v", round, resp.status, resp.header, granted)
				}
				if legacy := get(old.Limit(httplimit.By(ratelimit.MustDefine(name, rule),
					user("u")))(ok)); number(t, legacy.header, "X-RateLimit-Reset") != reset {
					t.Fatalf("round %d: %v", round, legacy.header)
				}
				resp.header.Del("Retry-After")
				if d, ok := upstream.RetryAfter(resp.header); !ok || d != reset {
					t.Fatalf("upstream reads %v of %v", d, resp.header)
				}
				clock.Add(reset - time.Second)
				if early := get(h); early.status != 429 {
					t.Fatalf("round %d: served more than a second early: %v", round, early.header)
				}
				clock.Add(time.Second)
				if round%2 == 0 {
					clock.Add(after - reset)
				}
				if resp := get(h); resp.status != 200 {
					t.Fatalf("round %d: %d at t", round, resp.status)
				}
				clock.Add(time.Duration(round) * 7300 * time.Millisecond)
			}
		})
	}
}

func params(t *testing.T, resp reply) map[string]int64 {
	t.Helper()
	list, err := parseList(resp.header.Values("RateLimit"))
	if err != nil || len(list) != 1 {
		t.Fatalf("%v: %v", err, resp.header)
	}
	return list[0].params
}

// The client of this module keeps to what the server says: after one 429 it stays away, and is
// served when it comes again.
func TestAClientBacksOffAndIsServed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	served := ratelimit.MustDefine("served", ratelimit.TokenBucket{Rate: 2, Period: 6 * time.Second})
	g := &httplimit.Guard{Limiter: coalesce(t, ratelimit.Config{}, pool)}
	var mu sync.Mutex
	var statuses []int
	var came []time.Time
	guarded := g.Limit(httplimit.By(served, httplimit.ByAddress()))(ok)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		rec := httptest.NewRecorder()
		guarded.ServeHTTP(rec, r)
		came, statuses = append(came, time.Now()), append(statuses, rec.Code)
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
	}))
	t.Cleanup(server.Close)

	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	mine := ratelimit.MustDefine("mine", ratelimit.TokenBucket{Rate: 1000, Period: time.Second})
	client := &http.Client{Timeout: time.Minute, Transport: &upstream.Transport{
		Base: base, Limiter: limiter(t, ratelimit.Config{}).Autocommit(pool),
		Requests: func(*http.Request) []ratelimit.Request { return []ratelimit.Request{mine.Global()} },
	}}
	var asked time.Duration
	for range 20 {
		resp, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if asked > 0 {
			break
		}
		if resp.StatusCode == 429 {
			asked = number(t, resp.Header, "Retry-After")
		}
	}
	n := len(statuses)
	if asked == 0 || statuses[n-1] != 200 || statuses[n-2] != 429 {
		t.Fatalf("asked for %v: %v", asked, statuses)
	}
	// the two moments are not those of the answer
	if waited := came[n-1].Sub(came[n-2]); waited < asked-50*time.Millisecond {
		t.Errorf("it came after %v, want %v", waited, asked)
	}
}

// A database that is away is 503, and nothing runs. Who has chosen to fail open lets requests
// through, and counts them.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("away", ratelimit.FixedWindow{Rate: 1, Period: never})
	auto := limiter(t, ratelimit.Config{}).Autocommit(pool)
	quiet := slog.New(slog.DiscardHandler)
	open := &ratelimit.FailOpen{Limiter: auto, Most: 3, Share: -1, Logger: quiet}
	ran := 0
	guarded := func(g *httplimit.Guard) http.Handler {
		return g.Limit(httplimit.By(limit, user("u")))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ran++
			if res, ok := httplimit.FromContext(r.Context()); !ok || !res.OK {
				t.Errorf("%+v, %v", res, ok)
			} else if err := auto.GiveBack(r.Context(), res); err != nil && !res.Decided() {
				t.Error(err) // there is nothing to give back, and no database to do so
			}
		}))
	}
	closed := guarded(&httplimit.Guard{Limiter: auto, Logger: quiet})
	opened := guarded(&httplimit.Guard{Limiter: open, Logger: quiet})
	if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	resp := get(closed)
	if resp.status != 503 || ran != 0 || resp.header.Get("RateLimit") != "" || resp.header.Get("Retry-After") != "" {
		t.Errorf("%d %v, ran %d", resp.status, resp.header, ran)
	}
	for i := range 5 {
		resp := get(opened)
		if want := map[bool]int{true: 200, false: 503}[i < 3]; resp.status != want ||
			resp.header.Get("RateLimit") != "" {
			t.Errorf("call %d: %d %v, want %d", i, resp.status, resp.header, want)
		}
	}
	if ran != 3 || open.Opened() != 3 {
		t.Errorf("ran %d, counted %d", ran, open.Opened())
	}
	shared := guarded(&httplimit.Guard{Limiter: &ratelimit.FailOpen{Limiter: auto, Logger: quiet}})
	for i := range 3 {
		resp := get(shared)
		want := map[bool]int{true: 200, false: 429}[i < 1]
		if resp.status != want ||
			want == 429 && resp.header.Get("Retry-After") == "" || resp.header.Get("RateLimit") != "" {
			t.Errorf("call %d of the share: %d %v, want %d", i, resp.status, resp.header, want)
		}
	}
}

// Several limits of a route are all or none, and what a handler does not use it gives back.
func TestALimitThatDeniesKeepsTheOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	auto := limiter(t, ratelimit.Config{}).Autocommit(pool)
	wide := ratelimit.MustDefine("wide", ratelimit.FixedWindow{Rate: 10, Period: never})
	tight := ratelimit.MustDefine("tight", ratelimit.FixedWindow{Rate: 2, Period: never})
	g := &httplimit.Guard{Limiter: auto}
	h := g.Limit(httplimit.By(wide, httplimit.ByAddress()), httplimit.By(tight, user("u")))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") == "" {
				return
			}
			res, _ := httplimit.FromContext(r.Context())
			if err := auto.GiveBack(r.Context(), res); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusNotModified)
		}))
	for i, want := range []int{304, 200, 304, 304, 200, 429, 429} {
		resp := get(h, func(r *http.Request) {
			if want == 304 {
				r.Header.Set("If-None-Match", `"x"`)
			}
		})
		if resp.status != want {
			t.Fatalf("call %d: %d, want %d", i, resp.status, want)
		}
	}
	if s, err := auto.Value(t.Context(), wide.For("192.0.2.1")); err != nil || s.Value != 8 {
		t.Errorf("%v tokens are left, %v, want 8", s.Value, err)
	}
	costly := g.Limit(httplimit.By(tight, user("u")).Cost(func(*http.Request) float64 { return 3 }))(ok)
	if resp := get(costly); resp.status != 400 {
		t.Errorf("what can never be granted: %d", resp.status)
	}
}

// A reservation is for later: no handler runs by it.
func TestNoHandlerRunsAheadOfItsTokens(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("ahead", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	quiet := slog.New(slog.DiscardHandler)
	g := &httplimit.Guard{Limiter: limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t)), Logger: quiet}
	h := g.Limit(func(*http.Request) ([]ratelimit.Request, error) {
		return []ratelimit.Request{limit.Global().OrReserve()}, nil
	})(ok)
	if first, second := get(h).status, get(h).status; first != 200 || second != 500 {
		t.Errorf("%d, %d", first, second)
	}
}

// In a handler's own transaction the tokens are taken if it commits, and the answers are the same.
func TestAHandlersOwnTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("own", ratelimit.FixedWindow{Rate: 2, Period: never})
	g := &httplimit.Guard{Logger: slog.New(slog.DiscardHandler)}
	broken := errors.New("broken")
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := inTx(r.Context(), l, pool, limit.For("u"), func() error {
			if r.Header.Get("Break") != "" {
				return broken
			}
			return nil
		})
		if g.Pass(w, r, res, err) {
			_, _ = io.WriteString(w, "ok")
		}
	})
	for i, c := range []struct {
		breaks string
		status int
		field  bool
	}{{"", 200, true}, {"x", 503, false}, {"", 200, true}, {"", 429, true}, {"x", 429, true}} {
		resp := get(h, func(r *http.Request) {
			if c.breaks != "" {
				r.Header.Set("Break", c.breaks)
			}
		})
		if resp.status != c.status || (resp.header.Get("RateLimit") != "") != c.field ||
			(resp.header.Get("Retry-After") != "") != (c.status == 429) {
			t.Errorf("call %d: %d %v", i, resp.status, resp.header)
		}
	}
}

func inTx(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, request ratelimit.Request,
	fn func() error) (res ratelimit.Result, err error) {
	err = l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if res, err = l.RateLimit(ctx, tx, request); err != nil {
			return err
		}
		if !res.OK {
			return res.Err()
		}
		return fn()
	})
	return res, err
}

// A handler flushes and takes over the connection as if there was no middleware.
func TestFlushingAndHijacking(t *testing.T) {
	t.Parallel()
	g := &httplimit.Guard{Limiter: limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))}
	middleware := g.Limit(httplimit.By(perUser, httplimit.ByAddress()))
	mux := http.NewServeMux()
	mux.Handle("/flush", middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, " second")
	})))
	mux.Handle("/hijack/{id}", middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(
			conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nRateLimit: "+w.Header().
				Get("RateLimit")+"\r\n\r\n"+r.PathValue("id"),
		)
		_ = conn.Close()
	})))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{"/flush": "first second", "/hijack/7": "7"} {
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := string(b); err != nil || got != want || resp.Header.Get("RateLimit") == "" {
			t.Errorf("%s: %q %v", path, got, resp.Header)
		}
	}
}
