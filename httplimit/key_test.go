package httplimit_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
	"github.com/weir-go/weir/weirtest"
)

func prefixes(texts ...string) (p []netip.Prefix) {
	for _, s := range texts {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func TestAddress(t *testing.T) {
	t.Parallel()
	inside := httplimit.Proxies{Trusted: prefixes("10.0.0.0/8", "fd00::/8", "::ffff:192.168.0.0/112")}
	forwarded, named, unix := inside, inside, inside
	forwarded.Header, named.Header, unix.Unix = "forwarded", "CF-Connecting-IP", true
	const proxy = "10.0.0.1:80"
	for name, c := range map[string]struct {
		proxies httplimit.Proxies
		remote  string
		lines   []string // of the header
		want    string   // "" for no key
	}{
		"Plain":             {remote: "203.0.113.7:1234", want: "203.0.113.7"},
		"PlainNoPort":       {remote: "203.0.113.7", want: "203.0.113.7"},
		"V6":                {remote: "[2001:db8:1:2:3:4:5:6]:1234", want: "2001:db8:1:2::/64"},
		"V6Neighbour":       {remote: "[2001:db8:1:2:ffff:ffff:ffff:ffff]:1", want: "2001:db8:1:2::/64"},
		"V6Brackets":        {remote: "[2001:db8:1:2::1]", want: "2001:db8:1:2::/64"},
		"V6Zone":            {remote: "[fe80::1%eth0]:1234", want: "fe80::/64"},
		"Mapped":            {remote: "[::ffff:203.0.113.7]:1234", want: "203.0.113.7"},
		"MappedWithZone":    {remote: "[::ffff:203.0.113.7%eth0]:1234", want: "203.0.113.7"},
		"Unix":              {remote: "@", lines: []string{"203.0.113.7"}},
		"UnixEmpty":         {remote: "", lines: []string{"203.0.113.7"}},
		"Garbage":           {proxies: unix, remote: "somewhere", lines: []string{"203.0.113.7"}},
		"UnixTrusted":       {proxies: unix, remote: "@", lines: []string{"198.51.100.1, 203.0.113.7"}, want: "203.0.113.7"},
		"UnixTrustedPath":   {proxies: unix, remote: "/run/proxy.sock", lines: []string{"203.0.113.7"}, want: "203.0.113.7"},
		"UnixTrustedNobody": {proxies: unix, remote: "@"},
		"UnixTrustedBad":    {proxies: unix, remote: "@", lines: []string{"203.0.113.7, nonsense"}},
		"NotTrusted":        {proxies: inside, remote: "203.0.113.7:1", lines: []string{"198.51.100.1"}, want: "203.0.113.7"},
		"Trusted":           {proxies: inside, remote: proxy, lines: []string{"203.0.113.7"}, want: "203.0.113.7"},
		"TrustedMapped":     {proxies: inside, remote: "[::ffff:10.0.0.1]:80", lines: []string{"203.0.113.7"}, want: "203.0.113.7"},
		"TrustedByMapped":   {proxies: inside, remote: "192.168.0.1:80", lines: []string{"203.0.113.7"}, want: "203.0.113.7"},
		"OutsideMapped":     {proxies: inside, remote: "192.169.0.1:80", lines: []string{"203.0.113.7"}, want: "192.169.0.1"},
		"TrustedV6":         {proxies: inside, remote: "[fd00::1]:80", lines: []string{"2001:db8:1:2::3"}, want: "2001:db8:1:2::/64"},
		"LastUntrusted":     {proxies: inside, remote: proxy, lines: []string{"198.51.100.1, 203.0.113.7, 10.2.2.2"}, want: "203.0.113.7"},
		"Lines": {proxies: inside, remote: proxy, lines: []string{"198.51.100.1",
			"203.0.113.7,10.2.2.2", "10.3.3.3"}, want: "203.0.113.7"},
		"Ports":       {proxies: inside, remote: proxy, lines: []string{"203.0.113.7:4711, [fd00::2]:80"}, want: "203.0.113.7"},
		"Spaces":      {proxies: inside, remote: proxy, lines: []string{" 203.0.113.7\t,  10.1.1.1 "}, want: "203.0.113.7"},
		"AllTrusted":  {proxies: inside, remote: proxy, lines: []string{"10.7.7.7, 10.8.8.8"}, want: "10.7.7.7"},
		"NoHeader":    {proxies: inside, remote: proxy, want: "10.0.0.1"},
		"Empty":       {proxies: inside, remote: proxy, lines: []string{""}, want: "10.0.0.1"},
		"BadLast":     {proxies: inside, remote: proxy, lines: []string{"203.0.113.7, unknown"}, want: "10.0.0.1"},
		"BadMiddle":   {proxies: inside, remote: proxy, lines: []string{"203.0.113.7, <script>, 10.5.5.5"}, want: "10.5.5.5"},
		"EmptyMiddle": {proxies: inside, remote: proxy, lines: []string{"203.0.113.7,,10.5.5.5"}, want: "10.5.5.5"},
		"BadFirst":    {proxies: inside, remote: proxy, lines: []string{"\xff\x00, 203.0.113.7"}, want: "203.0.113.7"},
		"Octal":       {proxies: inside, remote: proxy, lines: []string{"203.0.113.007"}, want: "10.0.0.1"},
		"Named":       {proxies: named, remote: proxy, lines: []string{"203.0.113.7"}, want: "203.0.113.7"},

		"Forwarded": {proxies: forwarded, remote: proxy, lines: []string{"for=203.0.113.7"}, want: "203.0.113.7"},
		"ForwardedWhole": {proxies: forwarded, remote: proxy, lines: []string{
			`For="[2001:db8:1:2::3]:4711";proto=https;by=10.0.0.1`,
		}, want: "2001:db8:1:2::/64"},
		"ForwardedSeveral": {proxies: forwarded, remote: proxy, lines: []string{
			"for=198.51.100.1 , for=203.0.113.7; proto=http", `by="a,b";for=10.3.3.3`,
		}, want: "203.0.113.7"},
		"ForwardedEscape": {proxies: forwarded, remote: proxy, lines: []string{`for="203.0.113\.7"`}, want: "203.0.113.7"},
		"ForwardedHidden": {proxies: forwarded, remote: proxy,
			lines: []string{"for=203.0.113.7, for=_hidden, for=10.3.3.3"}, want: "10.3.3.3"},
		"ForwardedUnknown": {proxies: forwarded, remote: proxy, lines: []string{"for=unknown"}, want: "10.0.0.1"},
		"ForwardedNoFor":   {proxies: forwarded, remote: proxy, lines: []string{"for=203.0.113.7, proto=http"}, want: "10.0.0.1"},
		"ForwardedTwice":   {proxies: forwarded, remote: proxy, lines: []string{"for=198.51.100.1;for=203.0.113.7"}, want: "10.0.0.1"},
		"ForwardedUnclosed": {proxies: forwarded, remote: proxy,
			lines: []string{`for=198.51.100.1;x="`, "for=203.0.113.7"}, want: "10.0.0.1"},
		"ForwardedEscapedEnd": {proxies: forwarded, remote: proxy, lines: []string{`for=198.51.100.1;x="\`}, want: "10.0.0.1"},
		"ForwardedQuoted": {proxies: forwarded, remote: proxy,
			lines: []string{`for=198.51.100.1;x="`, `for="[2001:db8::1]"`}, want: "10.0.0.1"},
		"ForwardedQuotedComma":  {proxies: forwarded, remote: proxy, lines: []string{`for="203.0.113.7, 198.51.100.1"`}, want: "10.0.0.1"},
		"ForwardedNoValue":      {proxies: forwarded, remote: proxy, lines: []string{"for"}, want: "10.0.0.1"},
		"ForwardedEmptyValue":   {proxies: forwarded, remote: proxy, lines: []string{"for="}, want: "10.0.0.1"},
		"ForwardedBareV6":       {proxies: forwarded, remote: proxy, lines: []string{"for=[2001:db8::1]"}, want: "10.0.0.1"},
		"ForwardedTrailing":     {proxies: forwarded, remote: proxy, lines: []string{"for=203.0.113.7;"}, want: "203.0.113.7"},
		"ForwardedNothing":      {proxies: forwarded, remote: proxy, want: "10.0.0.1"},
		"ForwardedNotForwarded": {proxies: inside, remote: proxy, lines: []string{"for=203.0.113.7"}, want: "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = c.remote
			header := c.proxies.Header
			if header == "" {
				header = "X-Forwarded-For"
			}
			for _, l := range c.lines {
				r.Header.Add(header, l)
			}
			if got, err := c.proxies.Address(r); got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
			addr := c.proxies.ClientAddr(r)
			if addr.IsValid() != (c.want != "") || addr.Is4() && addr.String() != c.want ||
				addr.Is6() && netip.PrefixFrom(addr, 64).Masked().String() != c.want {
				t.Errorf("the address is %v, and the key %q", addr, c.want)
			}
		})
	}
}

// ClientAddr is the whole address of which Address makes a key, of a request that a client cannot
// make come from elsewhere.
func TestClientAddr(t *testing.T) {
	t.Parallel()
	trusting := httplimit.Proxies{Trusted: prefixes("10.0.0.0/8", "fd00::/8")}
	forwarded := httplimit.Proxies{Trusted: trusting.Trusted, Header: "Forwarded"}
	for name, c := range map[string]struct {
		proxies httplimit.Proxies
		remote  string
		sent    http.Header
		want    string // "" for none
	}{
		"NoProxy":       {remote: "203.0.113.7:1234", want: "203.0.113.7"},
		"V6IsNoNetwork": {remote: "[2001:db8:1:2:3:4:5:6]:1234", want: "2001:db8:1:2:3:4:5:6"},
		"ZoneRemoved":   {remote: "[fe80::1%eth0]:1234", want: "fe80::1"},
		"Unmapped":      {remote: "[::ffff:203.0.113.7]:1234", want: "203.0.113.7"},
		"Behind": {proxies: trusting, remote: "10.0.0.1:80",
			sent: http.Header{"X-Forwarded-For": {"203.0.113.7"}}, want: "203.0.113.7"},
		"BehindSeveral": {proxies: trusting, remote: "[fd00::1]:80",
			sent: http.Header{"X-Forwarded-For": {"2001:db8::7, 10.2.2.2"}}, want: "2001:db8::7"},
		"BehindZoneRemoved": {proxies: trusting, remote: "10.0.0.1:80",
			sent: http.Header{"X-Forwarded-For": {"fe80::1%eth0"}}, want: "fe80::1"},
		"BehindUnmapped": {proxies: trusting, remote: "10.0.0.1:80",
			sent: http.Header{"X-Forwarded-For": {"::ffff:203.0.113.7"}}, want: "203.0.113.7"},
		"SpoofedNoProxy": {remote: "203.0.113.7:1", sent: http.Header{"X-Forwarded-For": {"198.51.100.1"}}, want: "203.0.113.7"},
		"SpoofedPastProxy": {proxies: trusting, remote: "203.0.113.7:1",
			sent: http.Header{"X-Forwarded-For": {"198.51.100.1"}}, want: "203.0.113.7"},
		"SpoofedFirst": {proxies: trusting, remote: "10.0.0.1:80", sent: http.Header{
			"X-Forwarded-For": {"198.51.100.1, 203.0.113.7"},
		}, want: "203.0.113.7"},
		"SpoofedFirstLine": {proxies: trusting, remote: "10.0.0.1:80", sent: http.Header{
			"X-Forwarded-For": {"198.51.100.1", "203.0.113.7"},
		}, want: "203.0.113.7"},
		"SpoofedAsProxy": {proxies: trusting, remote: "10.0.0.1:80", sent: http.Header{
			"X-Forwarded-For": {"198.51.100.1, 10.9.9.9, 203.0.113.7"},
		}, want: "203.0.113.7"},
		"SpoofedOtherFields": {proxies: trusting, remote: "10.0.0.1:80", sent: http.Header{
			"X-Real-Ip": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"},
		}, want: "10.0.0.1"},
		"Forwarded": {proxies: forwarded, remote: "10.0.0.1:80", sent: http.Header{
			"Forwarded": {`for=198.51.100.1, for="[2001:db8::7]:99"`},
		}, want: "2001:db8::7"},
		"Unix": {remote: "@", sent: http.Header{"X-Forwarded-For": {"203.0.113.7"}}},
		"UnixTrusted": {proxies: httplimit.Proxies{Unix: true}, remote: "@",
			sent: http.Header{"X-Forwarded-For": {"203.0.113.7"}}, want: "203.0.113.7"},
		"NoAddress":           {proxies: trusting, remote: "somewhere", sent: http.Header{"X-Forwarded-For": {"203.0.113.7"}}},
		"BehindUnixBadHeader": {proxies: httplimit.Proxies{Unix: true}, remote: "@", sent: http.Header{"X-Forwarded-For": {"nonsense"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want netip.Addr
			if c.want != "" {
				want = netip.MustParseAddr(c.want)
			}
			if got := c.proxies.ClientAddr(&http.Request{RemoteAddr: c.remote, Header: c.sent}); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// Whatever a client sends before what its proxy appends, it never chooses who it is: it is itself,
// or shares the proxy's key.
func TestNoPrefixOfAForwardedFieldMovesTheClient(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.StringOf(rapid.RuneFrom([]rune(`",;=\ for=198.51.100.1[]:"`))), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		for header, suffixes := range map[string][]string{
			"X-Forwarded-For": {"203.0.113.7", "203.0.113.7:99"},
			"Forwarded": {"for=203.0.113.7", `for="203.0.113.7:99"`,
				`for="203.0.113.7";by="x"`, `proto=http;for="203.0.113.7";by="[fd00::1]"`},
		} {
			p := httplimit.Proxies{Trusted: prefixes("10.0.0.0/8"), Header: header}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = "10.0.0.1:80"
			sent, suffix := text.Draw(t, "sent"), rapid.SampledFrom(suffixes).Draw(t, "suffix")
			if rapid.Bool().Draw(t, "in one line") {
				r.Header.Set(header, sent+", "+suffix)
			} else {
				r.Header[http.CanonicalHeaderKey(header)] = []string{sent, suffix}
			}
			got, err := p.Address(r)
			if own := got == "203.0.113.7"; err != nil || !own && (header != "Forwarded" || got != "10.0.0.1") {
				t.Fatalf("%v: %q, %v", r.Header, got, err)
			}
		}
	})
}

// Any text makes a key that the database takes, and no two the same.
func TestGoodKeysAreGoodAndKeptApart(t *testing.T) {
	t.Parallel()
	for _, same := range []string{"alice", "ä", strings.Repeat("x", 128), "sha256"} {
		if got := httplimit.Good(same); got != same {
			t.Errorf("%q has become %q", same, got)
		}
	}
	pool := pgtest.Pool(t)
	auto := limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("good", ratelimit.FixedWindow{Rate: 1, Period: never})
	long := strings.Repeat("x", 2048)
	keys := []string{"a", "a\x00", "\x00a", "a\xff", "\xff", shard.Home(0), long, long + "y", long[:129], long[:128]}
	for _, k := range keys[:len(keys)-1] {
		keys = append(keys, httplimit.Good(httplimit.Good(k)), httplimit.Good(k)) // which a client may send, too
	}
	by := map[string]string{}
	for _, k := range keys {
		good := httplimit.Good(k)
		if len(good) > 128 || !utf8.ValidString(good) || strings.Contains(good, "\x00") {
			t.Errorf("%q makes %q", k, good)
		}
		if other, ok := by[good]; ok && other != k {
			t.Errorf("%q and %q are both %q", k, other, good)
		}
		by[good] = k
	}
	for good := range by {
		if res, err := auto.RateLimit(t.Context(), limit.For(good)); err != nil || !res.OK {
			t.Errorf("%q: %+v, %v", good, res, err)
		}
	}
	if n := balances(t, pool); n != len(by) {
		t.Errorf("%d rows of %d keys", n, len(by))
	}
}

// Whatever a client sends as its key is answered with 200, or 403 where there is none, and is
// stored nowhere.
func TestAnAPIKeyOfAnyShape(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("key", ratelimit.FixedWindow{Rate: 1, Period: never})
	g := &httplimit.Guard{Limiter: limiter(t, ratelimit.Config{}).Autocommit(pool)}
	h := g.Limit(httplimit.By(limit, httplimit.ByHeader("X-Api-Key")))(ok)
	raw := g.Limit(func(r *http.Request) ([]ratelimit.Request, error) {
		return []ratelimit.Request{limit.For(r.Header.Get("X-Api-Key"))}, nil
	})(ok)
	for _, c := range []struct {
		key         string
		hashed, raw int
	}{
		{"", 403, 403}, {"secret", 200, 200}, {"sec\x00ret", 200, 403}, {"secret\xff", 200, 403}, {strings.Repeat("secret", 400), 200, 403},
	} {
		send := func(r *http.Request) { r.Header.Set("X-Api-Key", c.key) }
		if got := get(h, send).status; got != c.hashed {
			t.Errorf("%.20q: status %d, want %d", c.key, got, c.hashed)
		}
		if c.hashed == 200 {
			if again := get(h, send).status; again != 429 {
				t.Errorf("%.20q: status %d the second time", c.key, again)
			}
		}
		if got := get(raw, send).status; got != c.raw {
			t.Errorf("%.20q by an Ask of its own: status %d, want %d", c.key, got, c.raw)
		}
	}
	var stored int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance b WHERE b::text LIKE '%secret%'`).
		Scan(&stored); err != nil ||
		stored != 1 {
		t.Errorf("%d rows have the secret (%v), want the one of the Ask that does not hash", stored, err)
	}
}

// A handler that settles for another key than it took from is wrong: its client is not, and the log
// says so.
func TestSettlingForAnotherKeyIsNoFaultOfTheClient(t *testing.T) {
	t.Parallel()
	var limits weirtest.Limiter
	res, err := limits.RateLimit(t.Context(), perUser.For("ann"))
	if err != nil || !res.OK {
		t.Fatal(res, err)
	}
	_, err = limits.Settle(t.Context(), res.Reservation(), perUser.For("bob"))
	var log bytes.Buffer
	g := &httplimit.Guard{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	w := httptest.NewRecorder()
	if g.Pass(w, httptest.NewRequest(http.MethodPost, "/", nil), res, err) ||
		w.Code != http.StatusInternalServerError || log.Len() == 0 {
		t.Errorf("status %d for %v, logged %q", w.Code, err, &log)
	}
}
