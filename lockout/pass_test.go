package lockout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Only who is let in passes. All others get an answer that is never too early, and tells nothing
// that they have not sent.
func TestPassAnswers(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	lockedFor := func(d time.Duration) error {
		return fmt.Errorf("sign in: %w", &LockedError{Whose: "account", At: at, Until: at.Add(d)})
	}
	for name, c := range map[string]struct {
		ok     bool
		err    error
		status int
		retry  string
	}{
		"right":            {true, nil, 200, ""},
		"wrong":            {false, nil, 401, ""},
		"locked":           {false, lockedFor(time.Minute), 429, "60"},
		"locked for a bit": {false, lockedFor(time.Microsecond), 429, "1"},
		"rounded up":       {false, lockedFor(time.Minute + time.Microsecond), 429, "61"},
		"it is over":       {false, lockedFor(-time.Second), 429, "1"},
		"no account":       {false, &ratelimit.InvalidError{Field: "lockout.Who.Account"}, 400, ""},
		"no address":       {false, &ratelimit.InvalidError{Field: "lockout.Who.Address"}, 500, ""},
		"nested":           {false, ratelimit.ErrNested, 500, ""},
		"another denial":   {false, &ratelimit.DeniedError{At: at, RetryAt: at.Add(time.Hour)}, 503, ""},
		"database":         {false, errors.New("no connection to db.internal"), 503, ""},
		"not given back":   {true, errors.New("no connection to db.internal"), 503, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &Lockout{}
			w := httptest.NewRecorder()
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // so that nothing is logged
			passed := g.Pass(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil), c.ok, c.err)
			if passed != (c.status == 200) || w.Code != c.status || w.Header().Get("Retry-After") != c.retry {
				t.Errorf("passed %v, %d, %v", passed, w.Code, w.Header())
			}
			if passed && len(w.Header())+w.Body.Len() > 0 {
				t.Errorf("written: %v, %s", w.Header(), w.Body)
			}
			if want := fmt.Sprintf(`{"title":%q,"status":%d}`, http.StatusText(c.status),
				c.status); !passed && w.Body.String() != want {
				t.Errorf("%s, want %s", w.Body, want)
			}
			if !passed && (w.Header().Get("Cache-Control") != "no-store" ||
				!strings.HasPrefix(w.Header().Get("Content-Type"), "application/problem+json")) {
				t.Errorf("%v", w.Header())
			}
		})
	}
}

// What Attempt itself returns is answered as its doc says.
func TestPassOfAttempts(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1})
	status := func(who Who, check func(context.Context) (bool, error)) int {
		w := httptest.NewRecorder()
		ok, err := g.Attempt(t.Context(), who, check)
		g.Pass(w, httptest.NewRequest(http.MethodPost, "/", nil), ok, err)
		return w.Code
	}
	ann := from("ann", 1)
	for i, c := range []struct {
		who   Who
		check func(context.Context) (bool, error)
		want  int
	}{{ann, right, 200}, {ann, wrong, 401}, {ann, right, 429}, {from("", 1), right, 400}} {
		if got := status(c.who, c.check); got != c.want {
			t.Errorf("%d: %d, want %d", i, got, c.want)
		}
	}
}

// What is out of order on this side is logged, without the name of an account.
func TestPassLogsWhatIsOutOfOrder(t *testing.T) { // not parallel: it sets the default logger
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	g := &Lockout{cfg: Config{Name: "pins"}}
	for _, err := range []error{nil, &LockedError{}, errors.New("no connection")} {
		g.Pass(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil), false, err)
	}
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "no connection") ||
		!strings.Contains(s, "lockout=pins") {
		t.Errorf("logged %q", s)
	}
}
