package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newPlayground serves one on a schema of its own.
func newPlayground(t *testing.T) *httptest.Server {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := tables(t.Context(), pool, pool.Config().ConnConfig.RuntimeParams["search_path"]); err != nil {
		t.Fatal(err)
	}
	p, err := start(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	h, err := p.handler("playground.example")
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	return web
}

// ask returns the status and the body of an answer.
func ask(t *testing.T, web *httptest.Server, method, path, body string, fields ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, web.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		if r.Header.Set(fields[i], fields[i+1]); fields[i] == "Host" {
			r.Host = fields[i+1]
		}
	}
	answer, err := web.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

func fire(t *testing.T, web *httptest.Server, body string) (f fired) {
	t.Helper()
	status, answer := ask(t, web, http.MethodPost, "/fire", body)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", body, status, answer)
	}
	if err := json.Unmarshal([]byte(answer), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestEachLimitDoesWhatItsWordsSay(t *testing.T) {
	t.Parallel()
	web := newPlayground(t)
	began := time.Now()
	// as many as may have flown in since then, on a machine that may be slow
	flown := func(perSecond float64) int { return int(math.Ceil(perSecond * time.Since(began).Seconds())) }
	if f := fire(t, web, `{"limit": "search", "key": "ann", "verb": "fire", "n": 100}`); f.Granted < 20 ||
		f.Granted > 20+flown(2) ||
		f.Granted+f.Denied != 100 || f.RetryIn <= 0 || f.Shadow < 8 || f.Shadow > 10+flown(1) {
		t.Errorf("a bucket of twenty, and its shadow of ten: %+v", f)
	}
	if f := fire(t, web, `{"limit": "reports", "key": "ann", "verb": "fire", "n": 30}`); f.Granted < 12 ||
		f.Granted > 24 || f.RetryIn > 20 {
		t.Errorf("a window of twelve: %+v", f)
	}
	began = time.Now()
	if f := fire(t, web, `{"limit": "publicFeed", "verb": "fire", "n": 900}`); f.Granted < 399 ||
		f.Granted > 400+flown(40) || f.Granted+f.Denied != 900 {
		t.Errorf("a bucket of four hundred: %+v", f)
	}
	began = time.Now()
	if f := fire(t, web, `{"limit": "modelTokens", "key": "ann", "verb": "fire", "n": 60}`); f.Granted < 10 ||
		f.Granted > 10+flown(1) || f.Granted+f.Ahead != 60 || f.RunsIn < float64(49-flown(1)) || f.RunsIn > 50 {
		t.Errorf("a bucket of ten, and fifty ahead: %+v", f)
	}
	if f := fire(t, web, `{"limit": "modelTokens", "key": "ann", "verb": "fire", "n": 100}`); f.Ahead < 38 ||
		f.Ahead > 40+flown(1) || f.Ahead+f.Denied != 100 {
		t.Errorf("ninety may be reserved: %+v", f)
	}
	status, jobs := ask(t, web, http.MethodGet, "/weir/api/balance?limit=modelTokens", "", "Weir-Key", "ann")
	if status != http.StatusOK || strings.Count(jobs, `"kind":"answer"`) < 80-flown(1) {
		t.Errorf("%d %d jobs are on the time line", status, strings.Count(jobs, `"kind":"answer"`))
	}
}

func TestTheOtherVerbs(t *testing.T) {
	t.Parallel()
	web := newPlayground(t)
	fire(t, web, `{"limit": "reports", "key": "ben", "verb": "fire", "n": 12}`)
	fire(t, web, `{"limit": "reports", "key": "ben", "verb": "reset"}`)
	began := time.Now()
	fire(t, web, `{"limit": "reports", "key": "ben", "verb": "pause"}`)
	if f := fire(t, web, `{"limit": "reports", "key": "ben", "verb": "fire", "n": 1}`); f.Denied != 1 ||
		f.RetryIn < 9-time.Since(began).Seconds() {
		t.Errorf("while it is paused: %+v", f)
	}
	fire(t, web, `{"limit": "reports", "key": "ben", "verb": "resume"}`)
	if f := fire(t, web, `{"limit": "reports", "key": "ben", "verb": "fire", "n": 12}`); f.Granted != 12 {
		t.Errorf("after a reset: %+v", f)
	}
}

// Another site that its visitor looks at plays with nothing.
func TestOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	web := newPlayground(t)
	const body = `{"limit": "search", "key": "ann", "verb": "fire", "n": 1}`
	for name, tc := range map[string]struct {
		fields []string
		want   int
	}{
		"the page's own":         {[]string{"Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		"by its name":            {[]string{"Host", "playground.example"}, http.StatusOK},
		"another site":           {[]string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"another origin":         {[]string{"Origin", "https://evil.example"}, http.StatusForbidden},
		"another name for us":    {[]string{"Host", "evil.example", "Sec-Fetch-Site", "same-origin"}, http.StatusForbidden},
		"and with our port":      {[]string{"Host", "evil.example:8080"}, http.StatusForbidden},
		"localhost, by its name": {[]string{"Host", "localhost:8080"}, http.StatusOK},
	} {
		if status, answer := ask(t, web, http.MethodPost, "/fire", body, tc.fields...); status != tc.want {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if status, _ := ask(t, web, http.MethodGet, "/weir/api/limits", "", "Host",
		"evil.example"); status != http.StatusForbidden {
		t.Errorf("it reads: %d", status)
	}
}

func TestWhatIsAskedForWronglyIsRefused(t *testing.T) {
	t.Parallel()
	web := newPlayground(t)
	for _, body := range []string{``, `[]`, `{"limit": "other", "key": "k", "verb": "fire", "n": 1}`,
		`{"limit": "search", "key": " ", "verb": "fire", "n": 1}`,
		`{"limit": "search", "key": "k", "verb": "fire", "n": 0}`,
		`{"limit": "search", "key": "k", "verb": "fire", "n": 101}`,
		`{"limit": "search", "key": "k", "verb": "drop"}`,
		`{"limit": "search", "key": "a\u0000b", "verb": "reset"}`,
		`{"limit": "search", "key": "` + strings.Repeat("k", 5000) + `", "verb": "reset"}`} {
		if status, answer := ask(t, web, http.MethodPost, "/fire",
			body); status != http.StatusBadRequest || !strings.Contains(answer, `"error"`) {
			t.Errorf("%.60s: %d %s", body, status, answer)
		}
	}
	if status, _ := ask(t, web, http.MethodGet, "/fire", ""); status == http.StatusOK {
		t.Error("a GET fires")
	}
	if status, page := ask(t, web, http.MethodGet, "/", ""); status != http.StatusOK ||
		!strings.Contains(page, "Playground") {
		t.Errorf("%d %s", status, page)
	}
}

// Run as a program it plays, and leaves nothing behind.
func TestItServesUntilItIsStopped(t *testing.T) {
	t.Setenv("DATABASE_URL", pgtest.Server(t).URL())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	urls, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- run(ctx, "127.0.0.1:0", func(url string) { urls <- url }) }()
	select {
	case url := <-urls:
		r, err := http.Get(url + "weir/api/limits")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if !strings.Contains(string(b), `"modelTokens"`) {
			t.Errorf("%s", b)
		}
		http.DefaultClient.CloseIdleConnections()
	case err := <-done:
		t.Fatal(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var left int
	if err := pgtest.Bare(t).QueryRow(t.Context(),
		`SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'weir_demo_play_%'`).
		Scan(&left); err != nil ||
		left != 0 {
		t.Errorf("%d schemas are left, %v", left, err)
	}
}
