package dashboard

import (
	"context"
	"crypto/rand"
	"embed"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/ratelimit"
)

// Config configures a [Dashboard]. The zero Config shows everything in the tables.
type Config struct {
	// Schema is the Postgres schema with Weir's tables, quoted as needed. Default: whatever the
	// connection's search_path finds.
	Schema string

	// Decisions counts what this process decides: the Observer of its limiter. Default: none are
	// shown.
	Decisions *Decisions

	// Ahead reads the next n jobs that wait for a limit and key: see package dashboard/ahead. It is
	// called once a second while somebody looks at the key. Default: none are shown.
	Ahead func(ctx context.Context, limit, key string, n int) ([]Job, error)

	// InLine reads the tenants that wait in the fair line of a limit and key, in the order of their
	// next turns: see package dashboard/ahead. It is called as often as Ahead. Default: none are
	// shown.
	InLine func(ctx context.Context, limit, key string) (tenants []Tenant, more bool, err error)

	// HideKeys shows eight digits of a hash instead of each key and tenant, and offers no search.
	// Keys keep their order, and a key has the same digits everywhere. Default: false.
	HideKeys bool

	// Secret is the secret of the hash of hidden keys: at least 16 bytes, the same in all processes
	// behind one address. Viewers must not know it. Default: a random one, for a single process.
	Secret []byte

	// Clock replaces the database's clock, for tests that need to set it. Default: the database's.
	Clock func() time.Time
}

// Job is a job that waits.
type Job struct {
	ID     int64
	Kind   string
	Until  time.Time // when it starts, by the database's clock
	Paused bool      // it starts then because of a pause
}

// Tenant is a tenant whose jobs wait in a fair line.
type Tenant struct {
	Key     string  // its name
	Jobs    int     // that wait, as far as they were read
	Next    Job     // its next job, without a time
	Turn    int     // the place in line of that job: 1 goes next, 0 if it is not known
	Charged float64 // tokens that it has had beyond what all who wait have had, for a weight of 1

	// PassedOver is another limit, which has too few tokens for the next job, or "".
	PassedOver string
}

// Dashboard is an http.Handler with the page and its data. It works under any path, with
// http.StripPrefix. It is safe for concurrent use.
type Dashboard struct {
	look      *inspect.Reader
	decisions *Decisions
	ahead     func(ctx context.Context, limit, key string, n int) ([]Job, error)
	inLine    func(ctx context.Context, limit, key string) ([]Tenant, bool, error)
	hider     *hider // nil: keys are shown
	shared    *shared
}

// New makes a Dashboard. It does not touch the database. A bad Config is refused with an error that
// matches [ratelimit.ErrInvalid].
func New(db inspect.DB, cfg Config) (*Dashboard, error) {
	look, err := inspect.New(
		db, inspect.Config{Schema: cfg.Schema, Timeout: patience, Clock: cfg.Clock},
	)
	if err != nil {
		return nil, err
	}
	d := &Dashboard{look: look, decisions: cfg.Decisions, ahead: cfg.Ahead, inLine: cfg.InLine,
		shared: newShared()}
	switch n := len(cfg.Secret); {
	case n > 0 && n < 16:
		return nil, &ratelimit.InvalidError{Field: "dashboard.Config.Secret",
			Value: "one of few bytes", Want: "at least 16 bytes"}
	case n > 0 && !cfg.HideKeys:
		return nil, &ratelimit.InvalidError{Field: "dashboard.Config.Secret", Value: "one",
			Want: "none without HideKeys"}
	case n == 0 && cfg.HideKeys:
		cfg.Secret = []byte(rand.Text())
	}
	if cfg.HideKeys {
		d.hider, err = newHider(cfg.Secret)
	}
	return d, err
}

//go:embed static
var static embed.FS

// policy lets the page load what is here, and nothing else. It may be framed by pages of the same
// origin.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// ServeHTTP answers GET and HEAD.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "SAMEORIGIN")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, "this page only tells: GET or HEAD")
		return
	}
	switch name := strings.TrimPrefix(r.URL.Path, "/"); name {
	case "":
		mounted, _, _ := strings.Cut(r.RequestURI, "?")
		if mounted != "" && !strings.HasSuffix(mounted, "/") { // relative addresses would miss the prefix
			h.Set("Location", "./"+path.Base(mounted)+"/")
			w.WriteHeader(http.StatusPermanentRedirect)
			return
		}
		file(w, r, "index.html")
	case "api/limits":
		d.answer(w, r, d.limits)
	case "api/keys":
		d.answer(w, r, d.keys)
	case "api/balance":
		d.answer(w, r, d.balance)
	case "api/decisions":
		d.answer(w, r, d.decided)
	default:
		file(w, r, name)
	}
}

// types are those of the files: what the system says of endings differs.
var types = map[string]string{".html": "text/html; charset=utf-8",
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}

func file(w http.ResponseWriter, r *http.Request, name string) {
	body, err := static.ReadFile("static/" + name)
	if err != nil {
		fail(w, http.StatusNotFound, "there is no such page")
		return
	}
	w.Header().Set("Content-Type", types[path.Ext(name)])
	w.Header().Set("Cache-Control", "no-cache") // a new release of the program has new files
	w.Header().Set("ETag", etag(body))
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(body)))
}
