package upstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/upstream"
)

var partner = ratelimit.MustDefine("partner", ratelimit.TokenBucket{Rate: 10, Period: time.Second})

func byHost(r *http.Request) []ratelimit.Request {
	return []ratelimit.Request{partner.For(r.Header.Get("Tenant"))}
}

// line writes down what it is asked.
type line struct {
	mu      sync.Mutex
	waited  []ratelimit.Request
	paused  []ratelimit.Request
	lengths []time.Duration
	ended   bool // a pause was asked for with a context that has ended
	denies  error
	fails   error
}

func (l *line) Wait(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waited = append(l.waited, requests...)
	return ratelimit.Result{OK: l.denies == nil}, errors.Join(l.denies, ctx.Err())
}

func (l *line) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused, l.lengths = append(l.paused, requests...), append(l.lengths, d)
	l.ended = l.ended || ctx.Err() != nil
	return l.fails
}

// serve is an API that gives one answer to all.
func serve(t *testing.T, status int, header map[string]string) (url string, came *[]string) {
	t.Helper()
	came = new([]string)
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		*came = append(*came, r.Method+" "+string(b))
		mu.Unlock()
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "the answer")
	}))
	t.Cleanup(s.Close)
	return s.URL, came
}

func post(t *testing.T, ctx context.Context, url, tenant string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if tenant != "" {
		r.Header.Set("Tenant", tenant)
	}
	return r
}

// The answer is always returned as it is; a 429 pauses, and a 503 that says for how long.
func TestTheLimitsArePausedForAsLongAsTheAPIAsks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		header map[string]string
		unsaid time.Duration
		most   time.Duration
		want   time.Duration // 0: no pause
	}{
		"OK":                        {200, map[string]string{"Retry-After": "30"}, 0, 0, 0},
		"an error":                  {500, map[string]string{"Retry-After": "30"}, 0, 0, 0},
		"429":                       {429, map[string]string{"Retry-After": "30"}, 0, 0, 30 * time.Second},
		"429 that says nothing":     {429, nil, 0, 0, time.Minute},
		"429 with a default":        {429, nil, time.Second, 0, time.Second},
		"429 by the policy":         {429, map[string]string{"RateLimit": `"minute";r=0;t=12`}, time.Second, 0, 12 * time.Second},
		"503 that says for how":     {503, map[string]string{"Retry-After": "7"}, 0, 0, 7 * time.Second},
		"503 that says nothing":     {503, nil, time.Second, 0, 0},
		"503 without sense":         {503, map[string]string{"Retry-After": "soon"}, time.Second, 0, 0},
		"429 without sense, either": {429, map[string]string{"Retry-After": "soon"}, 0, 0, time.Minute},
		"429 for now":               {429, map[string]string{"Retry-After": "0"}, 0, 0, 0},
		"429 until a past date": {429, map[string]string{
			"Date": "Sun, 06 Nov 1994 08:49:37 GMT", "Retry-After": "Sun, 06 Nov 1994 08:49:07 GMT",
		}, 0, 0, 0},
		"503 for now":               {503, map[string]string{"Retry-After": "0"}, time.Second, 0, 0},
		"429 for a year":            {429, map[string]string{"Retry-After": "31622400"}, 0, 0, time.Hour},
		"429 for an hour":           {429, map[string]string{"Retry-After": "3600"}, 0, 0, time.Hour},
		"503 for a year":            {503, map[string]string{"Retry-After": "31622400"}, 0, 0, time.Hour},
		"429 for more than allowed": {429, map[string]string{"Retry-After": "30"}, 0, 7 * time.Second, 7 * time.Second},
		"429 for a day, allowed":    {429, map[string]string{"Retry-After": "86400"}, 0, 48 * time.Hour, 24 * time.Hour},
		"429 for ever, allowed":     {429, map[string]string{"Retry-After": "99999999999"}, 0, 1e6 * time.Hour, 366 * 24 * time.Hour},
		"bound below 0":             {429, map[string]string{"Retry-After": "31622400"}, 0, -1, time.Hour},
		"Unsaid is not bounded":     {429, nil, 2 * time.Hour, time.Minute, 2 * time.Hour},
		"Unsaid for ever":           {429, nil, 1e6 * time.Hour, 0, 366 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, came := serve(t, tc.status, tc.header)
			var l line
			transport := &upstream.Transport{Limiter: &l, Requests: byHost, Unsaid: tc.unsaid,
				MaxPause: tc.most, Base: &http.Transport{}}
			defer transport.CloseIdleConnections()
			client := http.Client{Transport: transport}
			resp, err := client.Do(post(t, t.Context(), url, "acme"))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != tc.status || string(b) != "the answer" ||
				len(*came) != 1 || (*came)[0] != "POST hello" {
				t.Errorf("%v %q, %v; the API met %q", resp.StatusCode, b, err, *came)
			}
			want := []ratelimit.Request{partner.For("acme")}
			if !reflect.DeepEqual(l.waited, want) {
				t.Errorf("waited for %+v", l.waited)
			}
			if tc.want == 0 && l.paused != nil ||
				tc.want > 0 && (!reflect.DeepEqual(l.paused, want) || l.lengths[0] != tc.want) {
				t.Errorf("paused %+v for %v, want %v", l.paused, l.lengths, tc.want)
			}
		})
	}
}

// body tells whether it was closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

func TestWhatIsDeniedIsNotSent(t *testing.T) {
	t.Parallel()
	url, came := serve(t, 200, nil)
	denied := &ratelimit.DeniedError{Limit: "partner", Key: "acme", At: time.Unix(0, 0), RetryAt: time.Unix(60, 0)}
	for name, tc := range map[string]struct {
		transport upstream.Transport
		is        error
	}{
		"denied":     {upstream.Transport{Limiter: &line{denies: denied}, Requests: byHost}, ratelimit.ErrDenied},
		"no limiter": {upstream.Transport{Requests: byHost}, nil},
	} {
		r := post(t, t.Context(), url, "acme")
		b := &body{Reader: strings.NewReader("hello")}
		r.Body = b
		resp, err := (&http.Client{Transport: &tc.transport}).Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || tc.is != nil && !errors.Is(err, tc.is) || !b.closed || len(*came) != 0 {
			t.Errorf("%s: %v, body closed %v, the API met %q", name, err, b.closed, *came)
		}
		var d *ratelimit.DeniedError
		if errors.As(err, &d) != (tc.is != nil) || d != nil && d.RetryAfter() != time.Minute {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestWhatAsksForNothingIsNotLimited(t *testing.T) {
	t.Parallel()
	url, came := serve(t, 429, nil)
	var l line
	for _, requests := range []func(*http.Request) []ratelimit.Request{nil, func(*http.Request) []ratelimit.Request { return nil }} {
		client := http.Client{Transport: &upstream.Transport{Limiter: &l, Requests: requests}}
		resp, err := client.Do(post(t, t.Context(), url, ""))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if len(*came) != 2 || l.waited != nil || l.paused != nil {
		t.Errorf("the API met %q, waited for %+v, paused %+v", *came, l.waited, l.paused)
	}
}

// ending cancels the request when its answer is there.
type ending struct {
	http.RoundTripper
	cancel context.CancelFunc
}

func (e ending) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := e.RoundTripper.RoundTrip(r)
	e.cancel()
	return resp, err
}

// The API's demand concerns everybody: it is passed on though the one who met it has gone, and an
// answer is not lost because it could not be.
func TestAPauseOutlivesItsCallerAndAFailedOneCostsNoAnswer(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, 429, map[string]string{"Retry-After": "30"})
	var logged bytes.Buffer
	l := line{fails: errors.New("no database")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	transport := &upstream.Transport{Base: ending{base, cancel}, Limiter: &l, Requests: byHost,
		Logger: slog.New(slog.NewTextHandler(&logged, nil))}
	resp, err := transport.RoundTrip(post(t, ctx, url, "acme"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 429 || l.ended || len(l.lengths) != 1 {
		t.Errorf("%v, paused %v, with a context that had ended: %v", resp.Status, l.lengths, l.ended)
	}
	if text := logged.String(); !strings.Contains(text, "no database") ||
		!strings.Contains(text, "for=30s") || !strings.Contains(text, "level=ERROR") {
		t.Errorf("logged %q", text)
	}
}

// A RoundTripper must leave the request as it is.
func TestTheRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, 200, nil)
	transport := &upstream.Transport{Limiter: &line{}, Requests: byHost}
	r := post(t, t.Context(), url, "acme")
	before := r.Clone(t.Context())
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if !reflect.DeepEqual(r.Header, before.Header) || r.URL.String() != before.URL.String() ||
		r.Context() != t.Context() {
		t.Errorf("%+v, before %+v", r, before)
	}
}
