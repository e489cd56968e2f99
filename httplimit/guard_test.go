package httplimit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	perUser = ratelimit.MustDefine("perUser", ratelimit.TokenBucket{Rate: 100, Period: time.Minute})
	at      = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	granted = ratelimit.Result{OK: true, At: at}
)

// limits answers all alike, and keeps what it was asked.
type limits struct {
	res   ratelimit.Result
	err   error
	hangs bool
	asked [][]ratelimit.Request
}

func (l *limits) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	l.asked = append(l.asked, requests)
	if l.hangs {
		<-ctx.Done()
		return ratelimit.Result{}, ctx.Err()
	}
	return l.res, l.err
}

func deniedFor(d time.Duration) ratelimit.Result {
	return ratelimit.Result{At: at, RetryAt: at.Add(d), Limit: "perUser", Key: "secret key",
		Outcomes: []ratelimit.Outcome{
			{Limit: "perUser", Key: "secret key", Capacity: 100, Rate: 100, Period: time.Minute, WindowEnds: at.Add(d), RetryAt: at.Add(d)},
		}}
}

func user(name string) httplimit.Key {
	return httplimit.ByUser(func(*http.Request) string { return name })
}

// ok is a handler that says so.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// reply is what a client has got.
type reply struct {
	status int
	header http.Header
	body   string
}

func get(h http.Handler, change ...func(*http.Request)) reply {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body.String()}
}

// Each way in which a request can end has its answer, and no answer has a key in it, or an error of
// the database.
func TestEveryEndHasItsAnswer(t *testing.T) {
	t.Parallel()
	secret := errors.New("secret: connection refused")
	for name, c := range map[string]struct {
		limits limits
		key    httplimit.Key
		asks   []httplimit.Ask
		status int
		logged string
	}{
		"Granted":      {limits: limits{res: granted}, status: 200},
		"Denied":       {limits: limits{res: deniedFor(time.Second)}, status: 429},
		"Undecided":    {limits: limits{res: ratelimit.Result{OK: true}}, status: 200},
		"DatabaseGone": {limits: limits{err: secret}, status: 503, logged: "ERROR"},
		"Unknown":      {limits: limits{err: fmt.Errorf("%w: %w", ratelimit.ErrOutcomeUnknown, secret)}, status: 503, logged: "ERROR"},
		"Overloaded":   {limits: limits{err: ratelimit.ErrOverloaded}, status: 503, logged: "ERROR"},
		"Hangs":        {limits: limits{hangs: true}, status: 503, logged: "ERROR"},
		"NoResult":     {limits: limits{}, status: 500, logged: "ERROR"},
		"Ahead":        {limits: limits{res: ratelimit.Result{OK: true, At: at, RunAt: at.Add(time.Second)}}, status: 500, logged: "ERROR"},
		"BadCount": {limits: limits{
			err: &ratelimit.InvalidError{Field: "count", Value: -1.0, Want: "secret"},
		}, status: 500, logged: "ERROR"},
		"BadKey": {limits: limits{err: &ratelimit.InvalidError{Field: "key", Value: "secret"}}, status: 403},
		"NoKey":  {limits: limits{res: granted}, key: user(""), status: 403},
		"NoKeyWrapped": {limits: limits{res: granted}, key: func(*http.Request) (string, error) {
			return "", fmt.Errorf("secret: %w", httplimit.ErrNoKey)
		}, status: 403},
		"KeyFails": {limits: limits{res: granted}, key: func(*http.Request) (string, error) {
			return "x", secret
		}, status: 503, logged: "ERROR"},
		"NilKey": {limits: limits{res: granted}, asks: []httplimit.Ask{httplimit.By(perUser, nil)}, status: 500, logged: "ERROR"},
		"NoAsks": {limits: limits{res: granted}, asks: []httplimit.Ask{}, status: 500, logged: "ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			g := &httplimit.Guard{Limiter: &c.limits, Timeout: 20 * time.Millisecond,
				Logger: slog.New(slog.NewTextHandler(&log, nil))}
			if !c.limits.hangs {
				g.Timeout = 0
			}
			if c.key == nil {
				c.key = user("u")
			}
			if c.asks == nil {
				c.asks = []httplimit.Ask{httplimit.By(perUser, c.key)}
			}
			ran := false
			resp := get(g.Limit(c.asks...)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				ran = true
			})))
			text := resp.body
			if resp.status != c.status || ran != (c.status == 200) {
				t.Errorf("status %d, ran %v: %s", resp.status, ran, text)
			}
			if strings.Contains(text+fmt.Sprint(resp.header), "secret") {
				t.Errorf("it leaks: %v %s", resp.header, text)
			}
			if (log.Len() > 0) != (c.logged != "") ||
				!strings.Contains(log.String(), "level="+c.logged) && c.logged != "" {
				t.Errorf("logged: %s", &log)
			}
			if c.status == 200 {
				return
			}
			var problem map[string]any
			if err := json.Unmarshal([]byte(text), &problem); err != nil ||
				resp.header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%v: %v %s", err, resp.header, text)
			}
			want := map[string]any{"title": http.StatusText(c.status), "status": float64(c.status)}
			if c.status == 429 {
				want = map[string]any{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
					"status":            429.0,
					"title":             "Request cannot be satisfied as assigned quota has been exceeded",
					"violated-policies": []any{"perUser"}}
			}
			if !reflect.DeepEqual(problem, want) {
				t.Errorf("%v, want %v", problem, want)
			}
			if (resp.header.Get("Retry-After") != "") != (c.status == 429) {
				t.Errorf("Retry-After of %d: %v", c.status, resp.header)
			}
		})
	}
}

func TestAGuardWithoutALimiterLetsNobodyThrough(t *testing.T) {
	t.Parallel()
	g := &httplimit.Guard{Logger: slog.New(slog.DiscardHandler)}
	if resp := get(g.Limit(httplimit.By(perUser, user("u")))(ok)); resp.status != 500 {
		t.Errorf("status %d", resp.status)
	}
}

// Somebody who hangs up is no failure of the database.
func TestAClientThatHasGoneIsNotLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	g := &httplimit.Guard{Limiter: &limits{hangs: true}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	resp := get(g.Limit(httplimit.Global(perUser))(ok), func(r *http.Request) { *r = *r.WithContext(ctx) })
	if resp.status != 503 || log.Len() > 0 {
		t.Errorf("status %d, logged %s", resp.status, &log)
	}
}

// All asks are one call, with their counts; who asks nothing makes none.
func TestAsksAreOneCall(t *testing.T) {
	t.Parallel()
	l := &limits{res: granted}
	g := &httplimit.Guard{Limiter: l}
	size := func(r *http.Request) float64 { return float64(len(r.URL.Query()["q"])) }
	internal := func(r *http.Request) bool { return r.Header.Get("Internal") != "" }
	h := g.Limit(
		httplimit.By(perUser, httplimit.ByAddress()).Unless(internal),
		httplimit.By(perUser, user("u")).Cost(size).Unless(internal),
		httplimit.Global(perUser).Unless(internal).Cost(size),
	)(ok)
	get(h, func(r *http.Request) { r.URL.RawQuery = "q=1&q=2" })
	want := [][]ratelimit.Request{{perUser.For("192.0.2.1"), perUser.For("u").Count(2), perUser.Global().Count(2)}}
	if !reflect.DeepEqual(l.asked, want) {
		t.Errorf("asked %+v, want %+v", l.asked, want)
	}
	resp := get(h, func(r *http.Request) { r.Header.Set("Internal", "1"); r.RemoteAddr = "" })
	if resp.status != 200 || len(l.asked) != 1 {
		t.Errorf("skipped: status %d, asked %+v", resp.status, l.asked)
	}
}

// An Ask may return the same requests to all callers: Cost and Rule change none of them.
func TestAnAskThatReturnsTheSameRequestsKeepsThem(t *testing.T) {
	t.Parallel()
	all := []ratelimit.Request{perUser.Global()}
	ask := httplimit.Ask(func(*http.Request) ([]ratelimit.Request, error) { return all, nil })
	l := &limits{res: granted}
	h := (&httplimit.Guard{Limiter: l}).Limit(
		ask.Cost(func(*http.Request) float64 { return 7 }),
		ask.Rule(func(*http.Request) ratelimit.Rule { return ratelimit.TokenBucket{Rate: 1, Period: time.Hour} }))
	get(h(ok), func(*http.Request) {})
	if want := []ratelimit.Request{perUser.Global()}; len(l.asked) != 1 || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v has become %+v", want, all)
	}
}

// A plan is asked for only when there is a key. No plan is the limit's own rule, and a bad one
// refuses the request.
func TestAsksByThePlanOfTheUser(t *testing.T) {
	t.Parallel()
	pro := ratelimit.TokenBucket{Rate: 600, Period: time.Minute}
	asked := 0
	planOf := func(r *http.Request) ratelimit.Rule {
		asked++
		switch r.Header.Get("Plan") {
		case "pro":
			return pro
		case "broken":
			return ratelimit.TokenBucket{}
		}
		return nil
	}
	l := &limits{res: granted}
	name := httplimit.ByUser(func(r *http.Request) string { return r.Header.Get("User") })
	h := (&httplimit.Guard{Limiter: l}).
		Limit(httplimit.By(perUser, name).Rule(planOf).Cost(func(*http.Request) float64 {
			return 2
		}))(ok)
	for _, plan := range []string{"pro", ""} {
		get(h, func(r *http.Request) { r.Header.Set("User", "ann"); r.Header.Set("Plan", plan) })
	}
	want := [][]ratelimit.Request{{perUser.For("ann").Count(2).Rule(pro)}, {perUser.For("ann").Count(2)}}
	if !reflect.DeepEqual(l.asked, want) {
		t.Errorf("asked %+v, want %+v", l.asked, want)
	}
	if resp := get(h, func(*http.Request) {}); resp.status != 403 || asked != 2 {
		t.Errorf("without a user: status %d, the plan was asked for %d times, want 2", resp.status, asked)
	}
	g := &httplimit.Guard{Limiter: limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t)),
		Logger: slog.New(slog.DiscardHandler)}
	resp := get(g.Limit(httplimit.By(perUser, name).Rule(planOf))(ok), func(r *http.Request) {
		r.Header.Set("User", "ann")
		r.Header.Set("Plan", "broken")
	})
	if resp.status != 500 {
		t.Errorf("with a rule that cannot be: status %d, want 500", resp.status)
	}
}

// The handler has the ResponseWriter itself, with the fields set already, and the result.
func TestTheHandlerGetsTheWriterAsItCame(t *testing.T) {
	t.Parallel()
	res := granted
	res.Outcomes = []ratelimit.Outcome{{Limit: "a", OK: true, Value: 3, Capacity: 5, Rate: 5, Period: time.Second}}
	g := &httplimit.Guard{Limiter: &limits{res: res}}
	w := httptest.NewRecorder()
	ran := false
	g.Limit(httplimit.By(perUser, user("u")))(http.HandlerFunc(func(got http.ResponseWriter, r *http.Request) {
		ran = true
		if got != http.ResponseWriter(w) {
			t.Errorf("it is wrapped: %T", got)
		}
		if h := got.Header().Get("RateLimit"); h != `"a";r=3;t=1` {
			t.Errorf("RateLimit is %q", h)
		}
		if from, ok := httplimit.FromContext(r.Context()); !ok || !reflect.DeepEqual(from, res) {
			t.Errorf("the context has %+v, %v", from, ok)
		}
	})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if !ran {
		t.Error("it did not run")
	}
	if _, ok := httplimit.FromContext(t.Context()); ok {
		t.Error("a context without a result has one")
	}
}

func TestRefuseReplacesTheAnswers(t *testing.T) {
	t.Parallel()
	l := &limits{res: deniedFor(90 * time.Second)}
	var refused []httplimit.Refusal
	g := &httplimit.Guard{Limiter: l, Logger: slog.New(slog.DiscardHandler),
		Refuse: func(w http.ResponseWriter, _ *http.Request, f httplimit.Refusal) {
			refused = append(refused, f)
			if f.Status != http.StatusTooManyRequests {
				f.Write(w)
				return
			}
			w.WriteHeader(http.StatusTeapot)
		}}
	h := g.Limit(httplimit.By(perUser, user("u")))(ok)
	resp := get(h)
	if resp.status != http.StatusTeapot || resp.header.Get("RateLimit") != `"perUser";r=0;t=90` ||
		resp.header.Get("Retry-After") == "" {
		t.Errorf("%d %v", resp.status, resp.header)
	}
	away := errors.New("away")
	l.res, l.err = ratelimit.Result{}, away
	if resp := get(h); resp.status != 503 {
		t.Errorf("status %d", resp.status)
	}
	want := []httplimit.Refusal{{Status: 429, Policies: []string{"perUser"},
		Result: deniedFor(90 * time.Second)}, {Status: 503, Err: away}}
	if !reflect.DeepEqual(refused, want) {
		t.Errorf("%+v, want %+v", refused, want)
	}
}

// A handler of its own call may have kept no more than the error.
func TestADenialMayComeAsAnError(t *testing.T) {
	t.Parallel()
	g := &httplimit.Guard{}
	res := deniedFor(90 * time.Second)
	for name, c := range map[string]struct {
		res    ratelimit.Result
		err    error
		fields string
	}{
		"Result":       {res, nil, `"perUser";r=0;t=90`},
		"Both":         {res, fmt.Errorf("handler: %w", res.Err()), `"perUser";r=0;t=90`},
		"Error":        {ratelimit.Result{}, res.Err(), ""},
		"OfOtherTakes": {granted, res.Err(), ""},
	} {
		w := httptest.NewRecorder()
		if g.Pass(w, httptest.NewRequest(http.MethodGet, "/", nil), c.res, c.err) {
			t.Errorf("%s: it may pass", name)
		}
		after, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if w.Code != 429 || err != nil || after < 90 || after > 108 || w.Header().Get("RateLimit") != c.fields ||
			!strings.Contains(w.Body.String(), `"violated-policies":["perUser"]`) {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
	}
}

// Retry-After is never early, and those who were denied together are told different times.
func TestRetryAfterIsSpreadUpwards(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d        time.Duration
		from, to int
	}{
		{-time.Hour, 1, 2}, {0, 1, 2}, {time.Microsecond, 1, 2}, {time.Second, 1, 2}, {time.Second + 1, 2, 3}, {9 * time.Second, 9, 10},
		{10 * time.Second, 10, 12}, {100 * time.Second, 100, 120}, {24 * time.Hour, 86400, 86460}, {1<<63 - 1, 9223372037, 9223372097},
	} {
		g := &httplimit.Guard{Limiter: &limits{res: deniedFor(c.d)}}
		h := g.Limit(httplimit.By(perUser, user("u")))(ok)
		seen := map[int]int{}
		for range 400 {
			header := get(h).header
			after, err := strconv.Atoi(header.Get("Retry-After"))
			if err != nil || after < c.from || after > c.to {
				t.Fatalf("denied for %v: Retry-After is %q, want %d to %d", c.d,
					header.Get("Retry-After"), c.from, c.to)
			}
			if list, err := parseList(header.Values("RateLimit")); err != nil || len(list) != 1 ||
				list[0].params["t"] > int64(after) {
				t.Fatalf("%v after %v: %v", header, c.d, err)
			}
			seen[after]++
		}
		if want := min(c.to-c.from+1, 20); len(seen) < want {
			t.Errorf("denied for %v: only %v", c.d, slices.Sorted(maps.Keys(seen)))
		}
	}
}
