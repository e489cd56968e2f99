package httplimit_test

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/upstream"
)

// bucket and window are outcomes that were granted.
func bucket(name string, value, capacity, rate float64, period time.Duration) ratelimit.Outcome {
	return ratelimit.Outcome{Limit: name, OK: true, Value: value, Capacity: capacity, Rate: rate, Period: period}
}

func window(name string, value, capacity, rate float64, period, left time.Duration) ratelimit.Outcome {
	o := bucket(name, value, capacity, rate, period)
	o.WindowEnds = at.Add(left)
	return o
}

func denied(o ratelimit.Outcome, d time.Duration) ratelimit.Outcome {
	o.OK, o.RetryAt = false, at.Add(d)
	return o
}

// result is that of a call which met the outcomes.
func result(outcomes ...ratelimit.Outcome) ratelimit.Result {
	res := ratelimit.Result{OK: true, At: at, Outcomes: outcomes}
	for _, o := range outcomes {
		if !o.OK {
			res.OK = false
			if o.RetryAt.After(res.RetryAt) {
				res.RetryAt, res.Limit = o.RetryAt, o.Limit
			}
		}
	}
	return res
}

// told is what a client is, by Guards around each other of which only the innermost may deny.
func told(fields httplimit.Fields, results ...ratelimit.Result) http.Header {
	w := httptest.NewRecorder()
	g := &httplimit.Guard{Fields: fields}
	for _, res := range results {
		if !g.Pass(w, httptest.NewRequest(http.MethodGet, "/", nil), res, nil) {
			break
		}
	}
	return w.Result().Header
}

func TestFields(t *testing.T) {
	t.Parallel()
	const minute, day = time.Minute, 24 * time.Hour
	for name, c := range map[string]struct {
		res           ratelimit.Result
		policy, limit string
	}{
		"Window": {result(window("w", 50, 100, 100, minute, 30*time.Second)), `"w";q=100;w=60`, `"w";r=50;t=30`},
		"WindowRounded": {result(window("w", 49.9, 100.9, 100, 1500*time.Millisecond,
			29*time.Second+time.Microsecond)), `"w";q=100;w=2`, `"w";r=49;t=30`},
		"WindowShort":    {result(window("w", 1, 5, 5, time.Millisecond, time.Microsecond)), `"w";q=5;w=1`, `"w";r=1;t=1`},
		"WindowSaved":    {result(window("w", 250, 300, 100, minute, 30*time.Second)), `"w";q=300;w=60`, `"w";r=250;t=30`},
		"WindowFull":     {result(window("w", 100, 100, 100, minute, 0)), `"w";q=100;w=60`, `"w";r=100;t=0`},
		"WindowOwes":     {result(window("w", -150, 100, 100, minute, 30*time.Second)), `"w";q=100;w=60`, `"w";r=0;t=90`},
		"WindowOfHalves": {result(window("w", 0, 5, 0.5, minute, 30*time.Second)), `"w";q=5;w=60`, `"w";r=0;t=90`},
		"WindowDenied": {result(denied(window("w", 4, 100, 100, minute, 30*time.Second),
			90*time.Second)), `"w";q=100;w=60`, `"w";r=4;t=90`},
		"Bucket":        {result(bucket("b", 50, 100, 100, minute)), `"b";q=100;w=60`, `"b";r=50;t=1`},
		"BucketSlow":    {result(bucket("b", 2, 5, 1, minute)), `"b";q=5;w=300`, `"b";r=2;t=60`},
		"BucketPart":    {result(bucket("b", 2.25, 5, 1, minute)), `"b";q=5;w=300`, `"b";r=2;t=45`},
		"BucketFull":    {result(bucket("b", 5, 5, 1, minute)), `"b";q=5;w=300`, `"b";r=5`},
		"BucketOfParts": {result(bucket("b", 2.1, 2.5, 1, minute)), `"b";q=2;w=150`, `"b";r=2`},
		"BucketTenths":  {result(bucket("b", 0, 0.3, 0.1, 10*time.Second)), `"b";q=0;w=30`, `"b";r=0`},
		"BucketOwes":    {result(bucket("b", -2, 5, 1, minute)), `"b";q=5;w=300`, `"b";r=0;t=180`},
		"BucketDenied":  {result(denied(bucket("b", 0.5, 5, 1, minute), 30*time.Second)), `"b";q=5;w=300`, `"b";r=0;t=30`},
		"BucketLate":    {result(denied(bucket("b", 0.5, 5, 1, minute), -time.Second)), `"b";q=5;w=300`, `"b";r=0;t=1`},
		"NoCapacity":    {result(denied(bucket("b", 0, 0, 1, minute), 1)), `"b";q=0;w=1`, `"b";r=0;t=1`},
		"Huge": {result(bucket("b", 1<<53, 1<<53, 1, 1000*day)),
			`"b";q=999999999999999;w=999999999999999`, `"b";r=999999999999999`},
		"HugeDebt": {result(bucket("b", -(1 << 53), 1, 1e-3, 1000*day)), `"b";q=1;w=86400000000`, `"b";r=0;t=999999999999999`},
		"Several": {result(window("w", 5, 9, 9, minute, minute), bucket("b", 2, 5, 1,
			minute)), `"w";q=9;w=60, "b";q=5;w=300`, `"w";r=5;t=60, "b";r=2;t=60`},
		"OneDenies": {result(window("w", 0, 9, 9, day, day), denied(bucket("b", 0, 5, 1, minute), minute)),
			`"w";q=9;w=86400, "b";q=5;w=300`, `"w";r=0, "b";r=0;t=60`},
		"SameTwice": {result(bucket("b", 2, 5, 1, minute), bucket("b", 2, 5, 1, minute)), `"b";q=5;w=300`, `"b";r=2;t=60`},
		"TighterLast": {result(bucket("b", 9, 9, 1, minute), bucket("x", 1, 1, 1, minute),
			bucket("b", 2, 5, 1, minute)), `"b";q=5;w=300, "x";q=1;w=60`, `"b";r=2;t=60, "x";r=1`},
		"TighterDenied": {result(denied(bucket("b", 1, 9, 1, minute), 9*minute),
			bucket("b", 0, 5, 1, minute)), `"b";q=9;w=540`, `"b";r=1;t=540`},
		"DeniedLonger": {result(denied(bucket("b", 0, 9, 1, minute), 2*minute),
			denied(bucket("b", 0, 9, 1, minute), 3*minute)), `"b";q=9;w=540`, `"b";r=0;t=180`},
		"NameQuoted": {result(bucket(`a "b" \c`, 1, 1, 1, minute)), `"a \"b\" \\c";q=1;w=60`, `"a \"b\" \\c";r=1`},
		"NameNotASCII": {result(bucket("größe\n50%\x7f", 1, 1, 1, minute)),
			`"gr%C3%B6%C3%9Fe%0A50%25%7F";q=1;w=60`, `"gr%C3%B6%C3%9Fe%0A50%25%7F";r=1`},
		"NothingDecided":  {ratelimit.Result{OK: true}, "", ""},
		"NothingOutcomes": {granted, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := told(httplimit.Draft10, c.res)
			if got, want := strings.Join(h.Values("RateLimit-Policy"), "|"), strings.ReplaceAll(c.policy,
				", ", ","); strings.ReplaceAll(got, ", ", ",") != want {
				t.Errorf("RateLimit-Policy: %s, want %s", got, want)
			}
			if got, want := strings.Join(h.Values("RateLimit"), "|"), strings.ReplaceAll(c.limit,
				", ", ","); strings.ReplaceAll(got, ", ", ",") != want {
				t.Errorf("RateLimit: %s, want %s", got, want)
			}
			if none := told(httplimit.None,
				c.res); none.Get("RateLimit")+none.Get("RateLimit-Policy")+none.Get("X-RateLimit-Limit") != "" ||
				(none.Get("Retry-After") != "") == c.res.OK {
				t.Errorf("none: %v", none)
			}
		})
	}
}

// Guards around each other add to the lists. When the inner one denies, what it does not know of is
// not promised: who has nothing left at the outer one comes no earlier than there is more, and no t
// is later than Retry-After.
func TestGuardsAroundEachOther(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	empty, some, full := window("outer", 0, 9, 9, hour, hour), window("outer", 3, 9, 9, hour, hour),
		bucket("outer", 9, 9, 9, hour)
	for name, c := range map[string]struct {
		results  []ratelimit.Result
		limit    string
		legacy   string
		from, to int // Retry-After
	}{
		"Granted": {[]ratelimit.Result{result(some), result(bucket("inner", 2, 5, 1, hour))},
			`"outer";r=3;t=3600|"inner";r=2;t=3600`, "5 2 3600", 0, 0},
		"Wider": {[]ratelimit.Result{result(some), result(bucket("inner", 4, 5, 1, hour))},
			`"outer";r=3;t=3600|"inner";r=4;t=3600`, "9 3 3600", 0, 0},
		"Denied": {[]ratelimit.Result{
			result(some), result(denied(bucket("inner", 0, 5, 1, hour), time.Minute)),
		}, `"outer";r=3|"inner";r=0;t=60`, "5 0 60", 60, 72},
		"Full": {[]ratelimit.Result{
			result(full), result(denied(bucket("inner", 0, 5, 1, hour), time.Minute)),
		}, `"outer";r=9|"inner";r=0;t=60`, "5 0 60", 60, 72},
		"BothEmpty": {[]ratelimit.Result{
			result(empty), result(denied(bucket("inner", 0, 5, 1, hour), time.Minute)),
		}, `"outer";r=0;t=3600|"inner";r=0;t=60`, "5 0 3600", 3600, 3660},
		"NoResult": {[]ratelimit.Result{
			result(empty), {At: at, RetryAt: at.Add(time.Minute), Limit: "inner"},
		}, `"outer";r=0;t=3600`, "9 0 3600", 3600, 3660},
		"OuterOnly": {[]ratelimit.Result{result(denied(empty, hour)), result(some)}, `"outer";r=0;t=3600`, "9 0 3600", 3600, 3660},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, old := told(httplimit.Draft10, c.results...), told(httplimit.Legacy, c.results...)
			if got := strings.Join(h.Values("RateLimit"), "|"); got != c.limit {
				t.Errorf("RateLimit: %s, want %s", got, c.limit)
			}
			if got := old.Get("X-RateLimit-Limit") + " " + old.Get("X-RateLimit-Remaining") + " " +
				old.Get("X-RateLimit-Reset"); got != c.legacy || old.Get("RateLimit") != "" {
				t.Errorf("legacy: %s, want %s", got, c.legacy)
			}
			for _, h := range []http.Header{h, old} {
				if got, _ := strconv.Atoi(h.Get("Retry-After")); got < c.from || got > c.to {
					t.Errorf("Retry-After: %d, want %d to %d", got, c.from, c.to)
				}
			}
		})
	}
}

// Whatever the Fields of two Guards are, a client that the inner one denies comes no earlier than
// the outer one has said, and no number is later than Retry-After.
func TestGuardsWithOtherFieldsAroundEachOther(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	inner := result(denied(bucket("inner", 0, 5, 1, hour), time.Minute))
	bare := ratelimit.Result{At: at, RetryAt: at.Add(time.Minute), Limit: "inner"}
	for _, outer := range []httplimit.Fields{httplimit.Draft10, httplimit.Legacy} {
		for _, fields := range []httplimit.Fields{httplimit.Draft10, httplimit.Legacy, httplimit.None} {
			for name, c := range map[string]struct {
				left     float64 // at the outer Guard
				inner    ratelimit.Result
				from, to int
			}{
				"Empty":           {0, inner, 3600, 3660},
				"EmptyNoOutcomes": {0, bare, 3600, 3660},
				"Some":            {3, inner, 60, 72},
				"SomeNoOutcomes":  {3, bare, 60, 72},
			} {
				w := httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				(&httplimit.Guard{Fields: outer}).Pass(w, r,
					result(window("outer", c.left, 9, 9, hour, hour)), nil)
				(&httplimit.Guard{Fields: fields}).Pass(w, r, c.inner, nil)
				h := w.Result().Header
				retry, _ := strconv.Atoi(h.Get("Retry-After"))
				if retry < c.from || retry > c.to {
					t.Errorf("%s, %d within %d: Retry-After: %d, want %d to %d", name, fields, outer, retry, c.from, c.to)
				}
				list, err := parseList(h.Values("RateLimit"))
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range list {
					if m.params["t"] > int64(retry) {
						t.Errorf("%s, %d within %d: Retry-After: %d is before %v", name, fields, outer, retry, m)
					}
				}
				if reset, _ := strconv.Atoi(h.Get("X-RateLimit-Reset")); reset > retry {
					t.Errorf("%s, %d within %d: Retry-After: %d is before X-RateLimit-Reset: %d", name, fields, outer,
						retry, reset)
				}
			}
		}
	}
}

// Other middleware may write the time of day there.
func TestATimeOfDayIsNoNumberOfSeconds(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	w.Header().Set("X-RateLimit-Remaining", "0")
	w.Header().Set("X-RateLimit-Reset", "1772366400")
	new(httplimit.Guard).Pass(w, httptest.NewRequest(http.MethodGet, "/", nil), deniedFor(time.Minute), nil)
	if retry, _ := strconv.Atoi(w.Header().Get("Retry-After")); retry < 60 || retry > 72 ||
		w.Header().Get("X-RateLimit-Reset") != "1772366400" {
		t.Errorf("%v", w.Header())
	}
}

// What is in the way of others is left as it is.
func TestAFieldOfSomebodyElseIsKept(t *testing.T) {
	t.Parallel()
	for _, line := range []string{`limit=10, remaining=0`, `("a" "b");r=0;t=4`, `"x"`} {
		w := httptest.NewRecorder()
		w.Header().Set("RateLimit", line)
		new(httplimit.Guard).Pass(w, httptest.NewRequest(http.MethodGet, "/", nil), deniedFor(time.Minute), nil)
		if got := w.Header().Values("RateLimit"); len(got) != 2 || strings.ReplaceAll(got[0], " ",
			"") != strings.ReplaceAll(line, " ", "") || got[1] != `"perUser";r=0;t=60` {
			t.Errorf("%q has become %q", line, got)
		}
	}
}

// Any names and numbers make fields that a parser by the RFC reads back, and that agree with each
// other, with Retry-After, with the answer's body and with what package upstream makes of them.
func TestAnyOutcomesMakeFieldsThatAgree(t *testing.T) {
	t.Parallel()
	tokens := rapid.OneOf(rapid.Float64Range(0, 10), rapid.Float64Range(0, 1<<53),
		rapid.Just(float64(1<<53)), rapid.Map(rapid.IntRange(0, 1000), func(n int) float64 {
			return float64(n)
		}))
	durations := rapid.OneOf(rapid.Int64Range(0, 100e6), rapid.Int64Range(0, 200*365*86400e6))
	rapid.Check(t, func(t *rapid.T) {
		var results []ratelimit.Result
		for range rapid.IntRange(1, 2).Draw(t, "guards") {
			var outcomes []ratelimit.Outcome
			for range rapid.IntRange(0, 3).Draw(t, "outcomes") {
				us := func(name string) time.Duration {
					return time.Duration(durations.Draw(t, name)) * time.Microsecond
				}
				o := ratelimit.Outcome{Limit: rapid.StringN(1, -1, 255).Draw(t, "name"), OK: true,
					Capacity: tokens.Draw(t, "capacity"),
					Rate:     max(1e-6, tokens.Draw(t, "rate")), Period: us("period") + 1000}
				o.Value = o.Capacity - tokens.Draw(t, "missing")
				if rapid.Bool().Draw(t, "windowed") {
					o.WindowEnds = at.Add(us("left"))
				}
				if rapid.Bool().Draw(t, "denied") {
					o = denied(o, us("denied for")-time.Second)
				}
				outcomes = append(outcomes, o)
			}
			results = append(results, result(outcomes...))
			if !results[len(results)-1].OK {
				break
			}
		}
		w := httptest.NewRecorder()
		passed := true
		for _, res := range results {
			passed = passed && new(httplimit.Guard).Pass(w, httptest.NewRequest(http.MethodGet, "/", nil), res, nil)
		}
		h := w.Result().Header
		policies, err := parseList(h.Values("RateLimit-Policy"))
		if err != nil {
			t.Fatalf("%v: %v", err, h)
		}
		list, err := parseList(h.Values("RateLimit"))
		if err != nil || len(list) != len(policies) {
			t.Fatalf("%v: %v", err, h)
		}
		var retry, latest int64
		if s := h.Get("Retry-After"); s != "" {
			if retry, err = strconv.ParseInt(s, 10, 64); err != nil || retry < 1 {
				t.Fatalf("Retry-After: %q", s)
			}
		}
		i := 0
		for _, res := range results {
			seen := map[string]bool{}
			for _, o := range res.Outcomes {
				if seen[o.Limit] {
					continue
				}
				seen[o.Limit] = true
				p, l := policies[i], list[i]
				i++
				name, err := url.PathUnescape(p.name)
				if err != nil || name != o.Limit || l.name != p.name {
					t.Fatalf("limit %q: %q and %q, %v", o.Limit, p.name, l.name, err)
				}
				if p.params["w"] < 1 || p.params["q"] < 0 || len(p.params) != 2 ||
					l.params["r"] < 0 || l.params["t"] < 0 {
					t.Fatalf("%v", h)
				}
				if !passed {
					latest = max(latest, l.params["t"])
				}
			}
		}
		if i != len(list) {
			t.Fatalf("%d of %d: %v", i, len(list), h)
		}
		if passed {
			if h.Get("Retry-After") != "" {
				t.Fatalf("granted: %v", h)
			}
			return
		}
		last := results[len(results)-1]
		if retry < latest || float64(retry) < math.Ceil(last.RetryAfter().Seconds()) {
			t.Fatalf("Retry-After %d is earlier than t=%d or %v", retry, latest, last.RetryAfter())
		}
		if d, ok := upstream.RetryAfter(h); !ok || d != time.Duration(min(retry, 366*86400))*time.Second {
			t.Fatalf("upstream reads %v of %v", d, h)
		}
		var problem struct {
			Policies []string `json:"violated-policies"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || w.Code != 429 {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		want := map[string]bool{}
		for _, o := range last.Outcomes {
			if !o.OK {
				want[o.Limit] = true
			}
		}
		if len(problem.Policies) != len(want) {
			t.Fatalf("violated: %v, want %v", problem.Policies, want)
		}
		for _, p := range problem.Policies {
			if name, err := url.PathUnescape(p); err != nil || !want[name] {
				t.Fatalf("violated: %v, want %v", problem.Policies, want)
			}
		}
	})
}

// What a limit in the shadow would have denied is nothing to clients.
func TestShadowsAreNotTold(t *testing.T) {
	t.Parallel()
	o := denied(bucket("trial (shadow)", 0, 5, 5, time.Minute), time.Second)
	o.Shadow = true
	res := result(bucket("enforced", 9, 10, 10, time.Minute), o)
	res.OK, res.RetryAt, res.Limit = true, time.Time{}, ""
	for _, fields := range []httplimit.Fields{httplimit.Draft10, httplimit.Legacy} {
		h := told(fields, res)
		if got := h.Get("RateLimit-Policy") +
			h.Get("X-RateLimit-Remaining"); got != `"enforced";q=10;w=60` && got != "9" ||
			strings.Contains(h.Get("RateLimit"), "trial") {
			t.Errorf("%v", h)
		}
	}
}
