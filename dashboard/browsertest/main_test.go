package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/dashboard"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience is for a busy machine.
const patience = time.Minute

// browser starts Chromium, and fails the test for every error that the page makes.
func browser(t *testing.T) *page {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if at, err := exec.LookPath(name); err == nil {
			program = at
			break
		}
	}
	if program == "" {
		fmt.Printf("%s: skipped: Chromium is not installed (Debian: apt-get install chromium)\n", t.Name())
		t.Skip("skipped: Chromium is not installed (Debian: apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.Flag("disable-gpu", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it refuses root otherwise
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	p := &page{t, ctx}
	messages := chromedp.Console(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for m, err := range messages {
			if err != nil {
				return
			}
			bad := m.IsException() || m.Type == "error" || m.Type == "warning"
			if bad && !strings.Contains(m.Text, "status of 503") { // which the page tells
				t.Errorf("the console says: %s", m)
			}
		}
	}()
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // and waits for the browser to end
		cancel()
		<-read
	})
	return p
}

// page is one in the browser. Whatever it is asked for and does not do fails the test.
type page struct {
	t   *testing.T
	ctx context.Context
}

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// eval is the value of an expression in the page.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true.
func (p *page) until(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !eval[bool](p,
		"Boolean("+expression+")"); time.Sleep(30 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("never: %s\n%s", expression, eval[string](p, `location.hash + "\n" + document.body.innerText`))
		}
	}
}

func (p *page) press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		if k < " " || k > "~" { // a key without text
			p.do(chromedp.KeyEvent(k))
			continue
		}
		// As a keyboard does it, where a page that takes a key for itself keeps it from being
		// typed.
		p.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, input.DispatchKeyEventParams{
				Type: input.DispatchKeyEventTypeKeyDown, Key: k, Text: k,
			})
			if err == nil {
				_, err = cdp.Call(ctx, t, input.DispatchKeyEvent,
					input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: k})
			}
			return err
		}))
	}
}

func (p *page) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// screen makes it that of a device, whose owner wants more than light or dark if so.
func (p *page) screen(width, height int64, scheme string, wants ...*emulation.MediaFeature) {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(width, height), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: append(wants, &emulation.MediaFeature{Name: "prefers-color-scheme", Value: scheme})})
		return err
	}))
}

// shoot writes what the screen shows to the folder that WEIR_SCREENSHOTS names, if it names one.
func (p *page) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("WEIR_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// site is a dashboard on limits that are in use.
type site struct {
	pool   *pgxpool.Pool
	limits *ratelimit.Autocommit
	url    string
	mu     sync.Mutex
	asked  int  // for data
	away   bool // no data comes
}

var (
	search = ratelimit.MustDefine("search", ratelimit.TokenBucket{Rate: 20, Period: 10 * time.Second})
	strict = ratelimit.MustDefine("search",
		ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second}, ratelimit.Shadow())
	reports = ratelimit.MustDefine("reports", ratelimit.FixedWindow{Rate: 12, Period: 20 * time.Second})
	model   = ratelimit.MustDefine("modelTokens",
		ratelimit.TokenBucket{Rate: 600, Period: time.Minute, Capacity: ratelimit.Tokens(100)})
	feed = ratelimit.MustDefine("publicFeed",
		ratelimit.TokenBucket{Rate: 4000, Period: time.Minute}, ratelimit.Shards(4))
	odd = ratelimit.MustDefine(`<img src=x onerror="document.title='oops'">`,
		ratelimit.TokenBucket{Rate: 3, Period: time.Hour})
)

func newSite(t *testing.T, cfg dashboard.Config) *site {
	t.Helper()
	s := &site{pool: pgtest.Pool(t)}
	cfg.Decisions = &dashboard.Decisions{}
	limiter, err := ratelimit.New(ratelimit.Config{Observer: cfg.Decisions})
	if err != nil {
		t.Fatal(err)
	}
	s.limits = limiter.Autocommit(s.pool)
	board, err := dashboard.New(s.pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data := strings.HasPrefix(r.URL.Path, "/ops/weir/api/")
		s.mu.Lock()
		if data {
			s.asked++
		}
		away := s.away && data
		s.mu.Unlock()
		if away {
			http.Error(w, `{"error": "The database is away."}`, http.StatusServiceUnavailable)
			return
		}
		http.StripPrefix("/ops/weir", board).ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	s.url = web.URL + "/ops/weir/"
	return s
}

func (s *site) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *site) take(t *testing.T, requests ...ratelimit.Request) {
	t.Helper()
	if _, err := s.limits.RateLimit(t.Context(), requests...); err != nil && t.Context().Err() == nil {
		t.Error(err)
	}
}

// populate takes from limits in all the ways that the page shows.
func (s *site) populate(t *testing.T) {
	t.Helper()
	for _, key := range []string{"ann", "ben", "cem", "dora", "eve",
		"a-tenant-with-a-name-that-is-much-longer-than-any-phone-is-wide-0123456789"} {
		s.take(t, search.For(key).Count(7), strict.For(key))
		s.take(t, reports.For(key).Count(5))
	}
	for range 9 {
		s.take(t, search.For("ben").Count(4), strict.For("ben"))
	}
	s.take(t, model.For("acme").Count(300).OrReserve())
	s.take(t, model.For("globex").Count(95))
	s.take(t, feed.Global().Count(2500))
	s.take(t, odd.For(`"><script>document.title='oops'</script>`))
	if err := s.limits.Pause(t.Context(), 90*time.Second, reports.For("cem")); err != nil {
		t.Fatal(err)
	}
}

// traffic goes on until the test ends.
func (s *site) traffic(t *testing.T) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; t.Context().Err() == nil; i++ {
			s.take(t, search.For("ann").Count(float64(1+i%6)), strict.For("ann"))
			if i%9 == 0 {
				s.take(t, reports.For("ann").Count(3))
			}
			select {
			case <-time.After(700 * time.Millisecond):
			case <-t.Context().Done():
			}
		}
	}()
	t.Cleanup(func() { <-done })
}

// ahead makes jobs up.
func ahead(context.Context, string, string, int) ([]dashboard.Job, error) {
	var jobs []dashboard.Job
	for i := range 40 {
		jobs = append(jobs, dashboard.Job{ID: int64(1000 + i), Kind: "generate_reply",
			Until: time.Now().Add(time.Duration(i*i) * 15 * time.Millisecond)})
	}
	return jobs, nil
}

// inLine makes a fair line up.
func inLine(context.Context, string, string) ([]dashboard.Tenant, bool, error) {
	all := []dashboard.Tenant{
		{Key: "modest", Jobs: 1, Next: dashboard.Job{ID: 41, Kind: "call"}, Turn: 1},
		{Key: "out", Jobs: 2, Next: dashboard.Job{ID: 7, Kind: "call"}, Turn: 2, PassedOver: "orgTokens"},
	}
	for i := range 30 {
		all = append(all, dashboard.Tenant{Key: fmt.Sprintf(
			"a-tenant-with-a-name-that-is-much-longer-than-any-phone-is-wide-%d", i,
		),
			Jobs: 100,
			Next: dashboard.Job{ID: int64(i), Kind: "call"}, Charged: 1200.5})
	}
	return all, true, nil
}
