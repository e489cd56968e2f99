package httplimit_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

const never = 1000 * time.Hour // in which no token comes

func limiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	cfg.Citus = cfg.Citus || pgtest.Citus()
	l, err := ratelimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func coalesce(t testing.TB, cfg ratelimit.Config, pool *pgxpool.Pool) *ratelimit.Coalesced {
	t.Helper()
	c := limiter(t, cfg).Coalesce(pool)
	t.Cleanup(c.Close)
	return c
}

func balances(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// sink is a ResponseWriter that keeps the status only.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

// One address that makes up a key for each request gets no more of them, in rows, memory or grants,
// than its own limit is: with the limit by address around that by key, a million cost some seconds
// and no query.
func TestAMillionMadeUpKeysAreHarmless(t *testing.T) {
	t.Parallel()
	const flood, most = 1_000_000, 50
	pool := pgtest.Pool(t)
	perAddress := ratelimit.MustDefine("address", ratelimit.FixedWindow{Rate: most, Period: never})
	perKey := ratelimit.MustDefine("key", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
	g := &httplimit.Guard{Limiter: coalesce(t, ratelimit.Config{RememberDenials: true}, pool)}
	served := 0
	h := g.Limit(httplimit.By(perAddress, httplimit.ByAddress()))(
		g.Limit(httplimit.By(perKey, httplimit.ByHeader("X-Api-Key")))(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { served++; w.WriteHeader(http.StatusOK) })))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := &sink{header: http.Header{}}
	began, before := time.Now(), leastHeap()
	for i := range flood {
		r.Header.Set("X-Api-Key", fmt.Sprint("made up ", i))
		clear(w.header)
		if h.ServeHTTP(w, r); w.status != 200 && w.status != 429 {
			t.Fatalf("status %d", w.status)
		}
	}
	grown := leastHeap() - before
	t.Logf("%v for %d, and the heap has grown by %d bytes", time.Since(began).Round(time.Millisecond), flood, grown)
	if rows := balances(t, pool); served != most || rows != most+1 {
		t.Errorf("%d were served, %d rows were made, want %d and one more", served, rows, most)
	}
	if grown > 16<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
}

// leastHeap is the least of some readings, as tests beside this one allocate, too.
func leastHeap() int64 {
	least := int64(math.MaxInt64)
	for range 5 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, int64(m.HeapAlloc)) //nolint:gosec // no heap is that large
	}
	return least
}

// In one call, too, a key that the address's limit denies leaves nothing behind: only a read for
// each.
func TestMadeUpKeysInOneCallLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const flood, most = 2_000, 5
	pool := pgtest.Pool(t)
	perAddress := ratelimit.MustDefine("address", ratelimit.FixedWindow{Rate: most, Period: never})
	perKey := ratelimit.MustDefine("key", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
	g := &httplimit.Guard{Limiter: coalesce(t, ratelimit.Config{}, pool)}
	h := g.Limit(httplimit.By(perAddress, httplimit.ByAddress()),
		httplimit.By(perKey, httplimit.ByHeader("X-Api-Key")))(ok)
	count := map[int]int{}
	for i := range flood {
		count[get(h, func(r *http.Request) { r.Header.Set("X-Api-Key", fmt.Sprint(i)) }).status]++
	}
	if rows := balances(t, pool); count[200] != most || count[429] != flood-most || rows != most+1 {
		t.Errorf("%v, and %d rows", count, rows)
	}
}

// A client that sends another forwarded-for each time is one client, whether there is a proxy that
// appends its address or none.
func TestForwardedForDoesNotMakeNewClients(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	const proxy, client = "10.1.2.3:4711", "203.0.113.9"
	for name, c := range map[string]struct {
		key    httplimit.Key
		remote string
		header string
		value  string // that the client sends, with a number
	}{
		"NoProxy":     {httplimit.ByAddress(), client + ":99", "X-Forwarded-For", "198.51.100.%d"},
		"NoProxyReal": {httplimit.ByAddress(), client + ":99", "X-Real-Ip", "198.51.100.%d"},
		"NotTheProxy": {httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8")), client + ":99", "X-Forwarded-For", "198.51.100.%d"},
		"Proxy":       {httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8")), proxy, "X-Forwarded-For", "198.51.100.%d, " + client},
		"ProxyAsProxy": {httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8")), proxy,
			"X-Forwarded-For", "198.51.100.%d, " + client + ", 10.9.9.9"},
		"OtherHeader": {httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8")), proxy, "Forwarded", "for=198.51.100.%d"},
		"Forwarded": {httplimit.Proxies{
			Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "Forwarded",
		}.Address, proxy,
			"Forwarded", "for=198.51.100.%d, for=" + client},
		"Quotation": {httplimit.Proxies{
			Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "Forwarded",
		}.Address, proxy,
			"Forwarded", `for=198.51.100.%d;x=", for="[2001:db8::1]:99"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := ratelimit.MustDefine(name, ratelimit.FixedWindow{Rate: 3, Period: never})
			g := &httplimit.Guard{Limiter: limiter(t, ratelimit.Config{}).Autocommit(pool)}
			h := g.Limit(httplimit.By(limit, c.key))(ok)
			served := 0
			for i := range 20 {
				resp := get(h, func(r *http.Request) {
					r.RemoteAddr = c.remote
					r.Header.Set(c.header, fmt.Sprintf(c.value, i))
				})
				if resp.status == 200 {
					served++
				}
			}
			if served != 3 {
				t.Errorf("%d of 20 were served, want 3", served)
			}
		})
	}
}
