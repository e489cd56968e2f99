package dashboard

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestNewRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	pool := &pgxpool.Pool{}
	for want, cfg := range map[string]Config{
		"16 bytes":  {HideKeys: true, Secret: []byte("short")},
		"HideKeys":  {Secret: []byte("0123456789abcdef")},
		"a schema:": {Schema: strings.Repeat("s", 64)},
	} {
		if _, err := New(pool, cfg); !errors.Is(err, ratelimit.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := New(nil, Config{}); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Error(err)
	}
}

type limitAnswer struct {
	At     int64
	Hidden bool
	Limits []struct {
		Name          string
		Windowed      bool
		Capacity      float64
		Period        int64
		Shards, Keys  int
		Short, InDebt int
		Paused        int
		Tightest      float64
		Recent        *tally
	}
}

type keyAnswer struct {
	ID, Key                                                string
	Value, Capacity, Rate                                  float64
	Period, WindowEnds, FullAt, PausedUntil, WrittenAt, At int64
	Windowed                                               bool
	Shards                                                 int
	Problem                                                string
}

type keysAnswer struct {
	Keys []keyAnswer
	Next string
}

type balanceAnswer struct {
	Balance *keyAnswer
	Jobs    []struct {
		ID     int64
		Kind   string
		Until  int64
		Paused bool
	}
	JobsError string
	More      bool
}

func TestWhatPagesRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	decisions := &Decisions{}
	a := take(t, pool, decisions, search.For("ann").Count(4), search.For("ann").Count(7),
		search.For("ben").Count(15).OrReserve(),
		reports.For("ann").Count(3), feed.Global().Count(30))
	if err := a.Pause(t.Context(), time.Minute, reports.For("ann")); err != nil {
		t.Fatal(err)
	}
	d := newDashboard(t, pool, Config{Clock: clock, Decisions: decisions})

	limits := data[limitAnswer](t, d, "/api/limits")
	if len(limits.Limits) != 3 || limits.At != noon.UnixMicro() || limits.Hidden {
		t.Fatalf("%+v", limits)
	}
	if l := limits.Limits[0]; l.Name != "feed" || l.Shards != 4 || l.Tightest != 0.25 ||
		l.Recent == nil || l.Recent.Granted != 1 {
		t.Errorf("%+v", l)
	}
	if l := limits.Limits[1]; l.Name != "reports" || !l.Windowed || l.Paused != 1 ||
		l.Period != time.Hour.Microseconds() {
		t.Errorf("%+v", l)
	}
	if l := limits.Limits[2]; l.Name != "search" || l.Keys != 2 || l.InDebt != 1 ||
		l.Tightest != -0.5 || *l.Recent != (tally{Granted: 1, Ahead: 1, Denied: 1}) {
		t.Errorf("%+v", l)
	}

	keys := data[keysAnswer](t, d, "/api/keys?limit=search")
	if len(keys.Keys) != 2 || keys.Keys[0].Key != "ann" || keys.Keys[0].ID != "ann" ||
		keys.Keys[0].Value != 6 || keys.Keys[1].Value != -5 || keys.Next != "" {
		t.Errorf("%+v", keys)
	}
	if keys := data[keysAnswer](t, d, "/api/keys?limit=search", "Weir-Prefix",
		"b"); len(keys.Keys) != 1 || keys.Keys[0].Key != "ben" {
		t.Errorf("%+v", keys)
	}

	b := data[balanceAnswer](t, d, "/api/balance?limit=search", "Weir-Key", "ben")
	if b.Balance == nil || b.Balance.FullAt != noon.Add(90*time.Second).UnixMicro() ||
		b.Balance.At != noon.UnixMicro() || b.Jobs != nil || b.JobsError != "" {
		t.Errorf("%+v", b)
	}
	b = data[balanceAnswer](t, d, "/api/balance?limit=reports", "Weir-Key", "ann")
	if b.Balance == nil || b.Balance.PausedUntil != noon.Add(time.Minute).UnixMicro() ||
		b.Balance.WindowEnds <= noon.UnixMicro() {
		t.Errorf("%+v", b.Balance)
	}
	if b = data[balanceAnswer](t, d, "/api/balance?limit=feed"); b.Balance == nil ||
		b.Balance.Value != 10 || b.Balance.ID != "" {
		t.Errorf("%+v", b.Balance)
	}
	if b = data[balanceAnswer](t, d, "/api/balance?limit=search", "Weir-Key", "nobody"); b.Balance != nil {
		t.Errorf("%+v", b.Balance)
	}

	told := data[struct {
		Seconds []tally
		Most    []struct {
			ID    string
			Times int
		}
	}](t, d, "/api/decisions?limit=search")
	if len(told.Seconds) != 300 || len(told.Most) != 1 || told.Most[0].ID != "ann" || told.Most[0].Times != 1 {
		t.Errorf("%+v", told)
	}
}

// Keys of any bytes go there and back.
func TestKeysOfAnyShape(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	keys := map[string]string{"a b+c%": "a%20b%2Bc%25", "ünï/👋": "%C3%BCn%C3%AF%2F%F0%9F%91%8B",
		"\"<script>\n": "%22%3Cscript%3E%0A", strings.Repeat("k", 1024): strings.Repeat("k", 1024)}
	for key := range keys {
		take(t, pool, nil, search.For(key))
	}
	for _, hide := range []bool{false, true} {
		d := newDashboard(t, pool, Config{Clock: clock, HideKeys: hide})
		found := data[keysAnswer](t, d, "/api/keys?limit=search")
		if len(found.Keys) != len(keys) {
			t.Fatalf("%+v", found)
		}
		for _, k := range found.Keys {
			encoded := k.ID
			if !hide {
				encoded = keys[k.Key]
			}
			if b := data[balanceAnswer](t, d, "/api/balance?limit=search", "Weir-Key",
				encoded); b.Balance == nil || b.Balance.ID != k.ID || b.Balance.Value != 9 {
				t.Errorf("%q: %+v", k.ID, b.Balance)
			}
		}
	}
}

func TestKeysArePaged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'search', 'key' || lpad(i::text, 3, '0'), 5, $1, 10, 10, 60000000 FROM generate_series(1, 130) i`,
		noon); err != nil {
		t.Fatal(err)
	}
	for _, hide := range []bool{false, true} {
		d := newDashboard(t, pool, Config{Clock: clock, HideKeys: hide})
		seen, from := map[string]bool{}, ""
		for pages := 1; ; pages++ {
			p := data[keysAnswer](t, d, "/api/keys?limit=search", "Weir-From", from)
			for _, k := range p.Keys {
				seen[k.ID] = true
			}
			if from = p.Next; from == "" {
				if pages != 3 || len(seen) != 130 {
					t.Errorf("%d pages, %d keys", pages, len(seen))
				}
				break
			}
		}
	}
}

func TestHiddenKeysAreInNoAnswer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	decisions := &Decisions{}
	take(t, pool, decisions, search.For("ann@example.org").Count(9), search.For("ann@example.org").Count(9))
	d := newDashboard(t, pool, Config{Clock: clock, HideKeys: true, Decisions: decisions})
	k := data[keysAnswer](t, d, "/api/keys?limit=search").Keys[0]
	if len(k.Key) != 8 || k.ID == k.Key || k.Value != 1 {
		t.Errorf("%+v", k)
	}
	for _, target := range []string{"/api/limits", "/api/keys?limit=search",
		"/api/balance?limit=search", "/api/decisions?limit=search"} {
		body := get(t, d, http.MethodGet, target, "Weir-Key", k.ID).Body.String()
		if strings.Contains(body, "ann@") || strings.HasPrefix(body, `{"error"`) ||
			strings.Contains(target, "decisions") && !strings.Contains(body, k.ID) {
			t.Errorf("%s: %s", target, body)
		}
	}
	for what, field := range map[string][2]string{"searching": {"Weir-Prefix", "a"},
		"a key in the open": {"Weir-Key", "ann@example.org"}, "another's name": {
			"Weir-Key", k.ID[:len(k.ID)-2] + "AA",
		}} {
		r := get(t, d, http.MethodGet, "/api/balance?limit=search", field[:]...)
		if r.Code != http.StatusBadRequest || strings.Contains(r.Body.String(), "ann@") {
			t.Errorf("%s: %d", what, r.Code)
		}
	}
	// Nor in what is told of a table that cannot be read.
	if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	blind := newDashboard(t, pool, Config{Clock: clock, HideKeys: true, Secret: []byte("0123456789abcdef")})
	id, _ := blind.hider.name("ann@example.org")
	r := get(t, blind, http.MethodGet, "/api/balance?limit=search", "Weir-Key", id)
	if body := r.Body.String(); r.Code != http.StatusServiceUnavailable ||
		strings.Contains(body, "ann@") || !strings.Contains(body, "42P01") {
		t.Errorf("%d %s", r.Code, body)
	}
}

// Processes that share a secret know each other's names.
func TestProcessesBehindOneAddressShareNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	take(t, pool, nil, search.For("ann"))
	cfg := Config{Clock: clock, HideKeys: true, Secret: []byte("0123456789abcdef")}
	a, b, other := newDashboard(t, pool, cfg), newDashboard(t, pool, cfg), newDashboard(t, pool, Config{HideKeys: true})
	id := data[keysAnswer](t, a, "/api/keys?limit=search").Keys[0].ID
	if k := data[balanceAnswer](t, b, "/api/balance?limit=search", "Weir-Key",
		id); k.Balance == nil || k.Balance.ID != id {
		t.Errorf("%+v", k)
	}
	if r := get(t, other, http.MethodGet, "/api/balance?limit=search", "Weir-Key",
		id); r.Code != http.StatusBadRequest {
		t.Errorf("%d", r.Code)
	}
}

func TestBadRequestsAreTheClientsFault(t *testing.T) {
	t.Parallel()
	d := newDashboard(t, &pgxpool.Pool{}, Config{})
	for target, field := range map[string]string{
		"/api/keys?limit=a%00b":                           "",
		"/api/keys?limit=%ff":                             "",
		"/api/keys?limit=" + strings.Repeat("l", 3000):    "",
		"/api/balance?limit=a":                            "%zz",
		"/api/balance?limit=b":                            "%00",
		"/api/decisions?limit=a&what=nothing-is-counted0": "",
	} {
		r := get(t, d, http.MethodGet, target, "Weir-Key", field)
		if body := r.Body.String(); r.Code != http.StatusBadRequest || !strings.Contains(body, `"error"`) {
			t.Errorf("%.40s: %d %s", target, r.Code, body)
		}
	}
}

// It has no address that changes anything, and cannot change anything: a role that may only read is
// enough.
func TestItOnlyReads(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its roles are those of one server")
	owner := pgtest.Pool(t)
	take(t, owner, nil, search.For("ann"), feed.Global())
	mine := owner.Config().ConnConfig.RuntimeParams["search_path"]
	role := mine + "_look"
	for _, sql := range []string{`CREATE ROLE ` + role, `GRANT USAGE ON SCHEMA ` + mine + ` TO ` +
		role, `GRANT SELECT ON weir_balance TO ` + role} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _, _ = owner.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	cfg := owner.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE `+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	d := newDashboard(t, pool, Config{Decisions: &Decisions{}})
	targets := []string{"/", "/page.js", "/api/limits", "/api/keys?limit=search",
		"/api/balance?limit=search", "/api/decisions?limit=search"}
	for _, target := range targets {
		if r := get(t, d, http.MethodGet, target, "Weir-Key", "ann"); r.Code != http.StatusOK {
			t.Errorf("%s: %d %s", target, r.Code, r.Body.String())
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodOptions, "ANY"} {
			if r := get(t, d, method, target); r.Code != http.StatusMethodNotAllowed ||
				r.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d", method, target, r.Code)
			}
		}
	}
}

func TestThePageIsAllowedNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	d := newDashboard(t, &pgxpool.Pool{}, Config{})
	if err := fs.WalkDir(static, "static", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, "static/")
		if name == "index.html" {
			name = ""
		}
		r := get(t, d, http.MethodGet, "/"+name)
		body := r.Body.String()
		policy := r.Header().Get("Content-Security-Policy")
		if r.Code != http.StatusOK || !strings.HasPrefix(policy,
			"default-src 'none'; script-src 'self'; style-src 'self';") ||
			strings.Contains(policy, "unsafe") ||
			r.Header().Get("X-Content-Type-Options") != "nosniff" || r.Header().
			Get("Cache-Control") != "no-cache" || r.Header().Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", name, r.Code, r.Header())
		}
		for _, not := range []string{"http:", "https:", " style=", " onclick=", "innerHTML", "eval("} {
			rest := strings.ReplaceAll(body, "http://www.w3.org/2000/svg", "")
			if strings.Contains(rest, not) {
				t.Errorf("%s has %q", path, not)
			}
		}
		again := get(t, d, http.MethodGet, "/"+name, "If-None-Match", r.Header().Get("ETag"))
		if again.Code != http.StatusNotModified {
			t.Errorf("%s: %d", name, again.Code)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nothing", "static", "../dashboard.go", "static/index.html",
		"api", "api/", "api/other"} {
		r := get(t, d, http.MethodGet, "/"+name)
		if r.Code != http.StatusNotFound || r.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d", name, r.Code)
		}
	}
}

func TestItWorksUnderAnyPrefix(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	take(t, pool, nil, search.For("ann"))
	for _, stripped := range []string{"", "/", "/weir", "/weir/", "/ops/limits/here"} {
		mux, prefix := http.NewServeMux(), strings.TrimSuffix(stripped, "/")
		mux.Handle(prefix+"/", http.StripPrefix(stripped, newDashboard(t, pool, Config{})))
		if l := data[limitAnswer](t, mux, prefix+"/api/limits"); len(l.Limits) != 1 {
			t.Errorf("%q: %+v", prefix, l)
		}
		if body := get(t, mux, http.MethodGet, prefix+"/").Body.String(); !strings.Contains(body, `src="page.js"`) {
			t.Errorf("%q: %s", prefix, body)
		}
	}
	// Where the router hands on the prefix alone, the browser is led to the slash, or relative
	// addresses would miss it.
	web := httptest.NewServer(http.StripPrefix("/ops/weir", newDashboard(t, pool, Config{})))
	defer web.Close()
	r, err := web.Client().Get(web.URL + "/ops/weir?x=/y")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK || r.Request.URL.Path != "/ops/weir/" {
		t.Errorf("%d at %s", r.StatusCode, r.Request.URL)
	}
}
