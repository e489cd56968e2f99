package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// place is a site on a database of its own.
type place struct {
	*visitors
	clock *weirtest.Clock
	t     testing.TB
	pool  *pgxpool.Pool
	web   *httptest.Server

	limiter *ratelimit.Limiter
}

// newPlace allows three requests a minute for a session, and two sessions an hour for an address.
// Its challenges are easy.
func newPlace(t testing.TB, change ...func(*visitors)) *place {
	t.Helper()
	p := &place{t: t, pool: pgtest.Pool(t), clock: weirtest.NewClock(start)}
	limiter, err := ratelimit.New(ratelimit.Config{RememberDenials: true, Clock: p.now})
	if err != nil {
		t.Fatal(err)
	}
	p.limiter = limiter
	coalesced := limiter.Coalesce(p.pool)
	t.Cleanup(coalesced.Close)
	p.visitors = newVisitors(coalesced, define(3, 2), keys{newKey, oldKey},
		httplimit.ByAddress(netip.MustParsePrefix("127.0.0.0/8")))
	p.bits, p.secure, p.visitors.now = 5, false, p.now
	p.gate.Logger = slog.New(slog.DiscardHandler)
	p.door.Logger = p.gate.Logger
	p.gate.Timeout, p.door.Timeout = time.Minute, time.Minute // a busy machine may stall for seconds
	for _, c := range change {
		c(p.visitors)
	}
	p.web = httptest.NewServer(p.handler(http.HandlerFunc(site)))
	t.Cleanup(p.web.Close)
	return p
}

func (p *place) now() time.Time { return p.clock.Now() }

func (p *place) client(from string) *client {
	return newClient(p.web.URL, from, p.web.Client().Transport)
}

// want is that a request is answered so.
func (p *place) want(status int, ask func(context.Context) (reply, error)) reply {
	p.t.Helper()
	r, err := ask(p.t.Context())
	if err != nil || r.status != status {
		p.t.Errorf("got %d %s (%v), want %d", r.status, r.body, err, status)
	}
	return r
}

// advised is that it is refused, and told what to do.
func (p *place) advised(what advice, ask func(context.Context) (reply, error)) {
	p.t.Helper()
	r := p.want(http.StatusForbidden, ask)
	if !strings.Contains(r.body, string(what)) || r.header.Get("Content-Type") != "application/problem+json" ||
		r.header.Get("Retry-After") != "" {
		p.t.Errorf("%s, %v, want %s", r.body, r.header, what)
	}
	if r.header.Get("Set-Cookie") != "" {
		p.t.Error("a cookie for who is refused")
	}
}

func (p *place) rows(names ...string) (n int) {
	p.t.Helper()
	if err := p.pool.QueryRow(p.t.Context(),
		`SELECT count(*) FROM weir_balance WHERE cardinality($1::text[]) = 0 OR name = any($1)`,
		append([]string{}, names...)).Scan(&n); err != nil {
		p.t.Fatal(err)
	}
	return n
}

func TestAClientThatKeepsItsCookieGetsItsRequests(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.client("203.0.113.1")
	p.advised(noSession, c.visit)
	p.want(204, c.begin)
	for range 3 {
		if r := p.want(200, c.visit); !strings.Contains(strings.Join(r.header.Values("RateLimit"),
			","), `"visitorSession";r=`) || r.body != "hello\n" {
			t.Errorf("%s, %v", r.body, r.header)
		}
	}
	if r := p.want(429, c.visit); r.header.Get("Retry-After") == "" {
		t.Errorf("%v", r.header)
	}
	p.clock.Add(20 * time.Second)
	p.want(200, c.visit)
	p.want(429, c.visit)
	p.clock.Add(time.Hour - 21*time.Second)
	p.want(200, c.visit)
	p.clock.Add(time.Second)
	p.advised(noSession, c.visit)
}

func TestAClientThatDropsItsCookieIsStoppedByItsAddress(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, from := range []string{"203.0.113.1", "2001:db8::1"} {
		c := p.client(from)
		served, began := 0, 0
		for i := range 20 {
			if i > 10 && from != "203.0.113.1" {
				c.from = "2001:db8::ffff" // the same network
			}
			c.drop()
			r, err := c.begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if r.status == 204 {
				began++
			} else if r.status != 429 || r.header.Get("Retry-After") == "" || r.header.Get("Set-Cookie") != "" {
				t.Errorf("%d %v", r.status, r.header)
			}
			for range 5 {
				if r, err := c.visit(t.Context()); err == nil && r.status == 200 {
					served++
				}
			}
		}
		if began != 2 || served != 2*3 {
			t.Errorf("%s: %d sessions and %d requests, want 2 and 6", from, began, served)
		}
	}
	p.want(204, p.client("203.0.113.2").begin)
	p.want(204, p.client("2001:db8:0:1::1").begin)
	p.clock.Add(sessionLife / 2)
	p.want(204, p.client("203.0.113.1").begin)
	p.want(429, p.client("203.0.113.1").begin)
}

func TestASessionForNothingIsGoodWhereItWasMade(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.client("2001:db8::1")
	p.want(204, c.begin)
	c.from = "2001:db8::2:3:4:5"
	p.want(200, c.visit)
	for _, c.from = range []string{"2001:db8:0:1::1", "203.0.113.1"} {
		p.advised(noSession, c.visit)
	}
	p.want(204, c.begin)
	p.want(200, c.visit)
	if n := p.rows("visitorSession"); n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
}

func TestAnEarnedSessionGoesWithItsVisitor(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.client("203.0.113.1")
	p.want(204, c.earn)
	for _, c.from = range []string{"203.0.113.1", "203.0.113.2", "2001:db8::1"} {
		p.want(200, c.visit)
	}
	p.want(429, c.visit) // wherever it goes
	p.want(204, c.begin)
	if n := p.rows("visitorEarned"); n != 1 {
		t.Errorf("%d addresses have earned a session, want 1", n)
	}
}

func TestManyAtOnceGetNoMore(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	one := p.client("203.0.113.1")
	p.want(204, one.begin)
	for name, c := range map[string]struct {
		ask    func(context.Context) (reply, error)
		status int
		want   int
	}{
		"sessions": {func(ctx context.Context) (reply, error) { return p.client("203.0.113.2").begin(ctx) }, 204, 2},
		"requests": {one.visit, 200, 3},
	} {
		var mu sync.Mutex
		count := map[int]int{}
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				r, err := c.ask(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				count[r.status]++
			})
		}
		wg.Wait()
		if count[c.status] != c.want || count[429] != 40-c.want {
			t.Errorf("%s: %v, want %d times %d, and 429", name, count, c.want, c.status)
		}
	}
}

// Scripts cannot read it, other sites' pages do not send it along with what they post, and by TLS
// it is of this very host.
func TestTheCookie(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		p := newPlace(t, func(v *visitors) { v.secure = secure })
		r := p.want(204, p.client("203.0.113.1").begin)
		cookies := (&http.Response{Header: r.header}).Cookies()
		if len(cookies) != 1 || r.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%v", r.header)
		}
		got, name := cookies[0], map[bool]string{false: "visitor", true: "__Host-visitor"}[secure]
		if got.Name != name || got.Secure != secure || !got.HttpOnly ||
			got.SameSite != http.SameSiteLaxMode || got.Path != "/" ||
			got.Domain != "" || got.MaxAge != 3600 {
			t.Errorf("%+v", got)
		}
		for _, other := range []string{"visitor", "__Host-visitor"} {
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req.RemoteAddr = "203.0.113.1:99"
			req.AddCookie(&http.Cookie{Name: other, Value: got.Value})
			if _, err := p.session(req); (err == nil) != (other == name) {
				t.Errorf("secure %v, %s: %v", secure, other, err)
			}
		}
	}
	if !newVisitors(nil, define(1, 1), nil, nil).secure {
		t.Error("cookies are not for TLS by default")
	}
}

func TestAPageOfAnotherSiteMakesNoSessions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, path := range []string{"/session", "/session/solved"} {
		p.advised(otherSite, func(ctx context.Context) (reply, error) {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, nil)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			w := httptest.NewRecorder()
			p.handler(nil).ServeHTTP(w, r)
			return reply{w.Code, w.Header(), w.Body.String()}, nil
		})
	}
	if n := p.rows("visitorFree", "visitorEarned"); n != 0 {
		t.Errorf("%d addresses have paid for it", n)
	}
}

// Without an address there is no session, in particular none that is good everywhere.
func TestNoAddressIsNoSession(t *testing.T) {
	t.Parallel()
	for known := range 5 { // the first times that it is asked for
		p := newPlace(t, func(v *visitors) {
			asked := 0
			v.address = func(*http.Request) (string, error) {
				if asked++; asked > known {
					return "", httplimit.ErrNoKey
				}
				return "203.0.113.1", nil
			}
		})
		r, err := p.client("").begin(t.Context())
		if want := known >= 3; err != nil || (r.status == 204) != want ||
			(r.header.Get("Set-Cookie") != "") != want || !want && r.status != 403 {
			t.Errorf("an address known %d times: %d %v, %v", known, r.status, r.header, err)
		}
	}
}

func TestADatabaseThatIsAwayLetsNobodyIn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.client("203.0.113.1")
	p.want(204, c.begin)
	p.want(200, c.visit)
	if _, err := p.pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	p.want(503, c.visit)
	if r := p.want(503, c.begin); r.header.Get("Set-Cookie") != "" {
		t.Error("a session")
	}
}

func TestTheStory(t *testing.T) {
	t.Parallel()
	p := newPlace(t, func(v *visitors) { v.limits, v.bits = define(requests, sessions), 10 })
	var out bytes.Buffer
	if err := (&story{out: &out, url: p.web.URL, pool: p.pool}).tell(t.Context()); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}
