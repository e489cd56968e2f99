package observe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

var (
	at     = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	signUp = ratelimit.MustDefine("signUp", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
)

func outcome(ok bool, value float64) ratelimit.Outcome {
	return ratelimit.Outcome{Limit: "signUp", Key: "ann@example.org", OK: ok, Value: value,
		Capacity: 10, Rate: 10, Period: time.Minute}
}

func granted(value float64) ratelimit.DecidedEvent {
	return ratelimit.DecidedEvent{Requests: []ratelimit.Request{signUp.For("ann@example.org")},
		Result: ratelimit.Result{OK: true, At: at, Outcomes: []ratelimit.Outcome{outcome(true, value)}}}
}

func denied() ratelimit.DecidedEvent {
	o := outcome(false, 0.5)
	o.RetryAt = at.Add(3 * time.Second)
	return ratelimit.DecidedEvent{Requests: []ratelimit.Request{signUp.For("ann@example.org")},
		Result: ratelimit.Result{At: at, RetryAt: o.RetryAt, Limit: "signUp", Key: o.Key,
			Outcomes: []ratelimit.Outcome{o}}}
}

func shadowed() ratelimit.DecidedEvent {
	e := granted(9)
	o := outcome(false, 0)
	o.Limit, o.Shadow, o.RetryAt = "signUp (shadow)", true, at.Add(time.Second)
	e.Result.Outcomes = append(e.Result.Outcomes, o)
	return e
}

func failed(err error) ratelimit.DecidedEvent {
	return ratelimit.DecidedEvent{Requests: []ratelimit.Request{signUp.For("ann@example.org")}, Err: err}
}

// written runs do with a log, and returns its lines.
func written(t *testing.T, l *observe.Log, do func()) []map[string]any {
	t.Helper()
	var out bytes.Buffer
	l.Logger = slog.New(slog.NewJSONHandler(&out, nil))
	synctest.Test(t, func(*testing.T) { do() })
	var lines []map[string]any
	for line := range strings.Lines(out.String()) {
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		delete(m, "time")
		lines = append(lines, m)
	}
	return lines
}

func TestEachThingIsToldOnceAMinuteWithHowOftenItHappened(t *testing.T) {
	t.Parallel()
	l := &observe.Log{}
	lines := written(t, l, func() {
		for range 100 { // in 30 seconds
			l.Decided(t.Context(), denied())
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		l.Decided(t.Context(), denied())
	})
	if len(lines) != 2 || lines[0]["times"] != 1.0 || lines[1]["times"] != 100.0 || lines[0]["level"] != "INFO" ||
		lines[0]["limit"] != "signUp" || lines[0]["retry_after"] != 3e9 {
		t.Errorf("%v", lines)
	}
}

func TestWhatIsToldOfADecision(t *testing.T) {
	t.Parallel()
	late, done := context.WithTimeout(t.Context(), 0)
	defer done()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		l    *observe.Log
		ctx  context.Context
		e    ratelimit.DecidedEvent
		want string // the message
	}{
		"granted":                  {e: granted(5)},
		"just above":               {e: granted(1.1)},
		"near":                     {e: granted(1), want: "WARN ratelimit: near the limit"},
		"owing":                    {e: granted(-5), want: "WARN ratelimit: near the limit"},
		"near, by another measure": {l: &observe.Log{Near: 0.5}, e: granted(5), want: "WARN ratelimit: near the limit"},
		"no warnings":              {l: &observe.Log{Near: -1}, e: granted(0)},
		"denied":                   {e: denied(), want: "INFO ratelimit: denied"},
		"denied in shadow":         {e: shadowed(), want: "WARN ratelimit: denied in shadow"},
		"of a lease": {e: ratelimit.DecidedEvent{Requests: denied().Requests, Result: ratelimit.Result{
			At: at, RetryAt: at.Add(time.Second),
		}}, want: "INFO ratelimit: denied"},
		"an error":                     {e: failed(errors.New("connection refused")), want: "ERROR ratelimit: not decided"},
		"the caller's":                 {e: failed(context.Canceled)},
		"of a deadline":                {ctx: late, e: failed(context.DeadlineExceeded), want: "ERROR ratelimit: not decided"},
		"of a context that has ended":  {ctx: ended, e: failed(errors.New("timeout"))},
		"let through while it is down": {e: ratelimit.DecidedEvent{Result: ratelimit.Result{OK: true}}},
		"of nothing":                   {e: ratelimit.DecidedEvent{Err: ratelimit.ErrInvalid}, want: "ERROR ratelimit: not decided"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			l := tc.l
			if l == nil {
				l = &observe.Log{}
			}
			lines := written(t, l, func() { l.Decided(ctx, tc.e) })
			if tc.want == "" && len(lines) == 0 {
				return
			}
			if len(lines) != 1 || fmt.Sprint(lines[0]["level"], " ", lines[0]["msg"]) != tc.want {
				t.Errorf("%v, want %q", lines, tc.want)
			}
		})
	}
}

// A line says whether a call was denied because more than MaxReserved would be owed, which is that
// of the limit of the line.
func TestADenialByMaxReservedIsToldApart(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.TokenBucket{Rate: 10, Period: time.Minute, MaxReserved: ratelimit.Tokens(5)}
	jobs, calls := ratelimit.MustDefine("jobs", bucket), ratelimit.MustDefine("calls", bucket)
	trial := ratelimit.MustDefine("trial", bucket, ratelimit.Shadow())
	used := func(value float64) func(limit, key string) ratelimit.State {
		return func(string, string) ratelimit.State { return ratelimit.State{Value: value, TS: at} }
	}
	for name, tc := range map[string]struct {
		left     float64
		requests []ratelimit.Request
		want     []any // of each line
	}{
		"the queue is full":        {-3, []ratelimit.Request{jobs.For("k").Count(4).OrReserve()}, []any{5.0}},
		"the key has used all":     {-3, []ratelimit.Request{jobs.For("k")}, []any{nil}},
		"both, by their own limit": {-3, []ratelimit.Request{jobs.For("k").Count(4).OrReserve(), calls.For("k")}, []any{5.0, nil}},
		"in shadow":                {-3, []ratelimit.Request{trial.For("k").Count(4).OrReserve()}, []any{5.0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, _, err := ratelimit.Foretell(at, used(tc.left), tc.requests...)
			if err != nil {
				t.Fatal(err)
			}
			l := &observe.Log{}
			lines := written(t, l, func() {
				l.Decided(t.Context(), ratelimit.DecidedEvent{Requests: tc.requests, Result: res})
			})
			if len(lines) != len(tc.want) {
				t.Fatalf("%v", lines)
			}
			for i, line := range lines {
				if line["max_reserved"] != tc.want[i] {
					t.Errorf("%v, want max_reserved %v", line, tc.want[i])
				}
			}
		})
	}
}

// Keys are often people's: they are written only where that is asked for.
func TestKeysAreNotWrittenUnlessAskedFor(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		l := &observe.Log{Keys: keys}
		lines := written(t, l, func() {
			for _, e := range []ratelimit.DecidedEvent{denied(), granted(0), shadowed(), failed(errors.New("away"))} {
				l.Decided(t.Context(), e)
			}
		})
		if len(lines) != 4 {
			t.Fatalf("%v", lines)
		}
		for _, line := range lines {
			if (line["key"] == "ann@example.org") != keys || !keys && strings.Contains(fmt.Sprint(line), "ann@") {
				t.Errorf("keys %v: %v", keys, line)
			}
		}
	}
}

// The error of a call that was refused because of its key has that in its text.
func TestErrorsTellNoKeyUnlessAskedFor(t *testing.T) {
	t.Parallel()
	ann := signUp.For("ann@example.org")
	for name, requests := range map[string][]ratelimit.Request{
		"a key that cannot be stored": {signUp.For("ann@example.org\x00")},
		"two that do not fit":         {ann, ann.OrReserve()},
	} {
		_, err := new(weirtest.Limiter).RateLimit(t.Context(), requests...)
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		for _, keys := range []bool{false, true} {
			l := &observe.Log{Keys: keys}
			lines := written(t, l, func() {
				l.Decided(t.Context(), ratelimit.DecidedEvent{Requests: requests, Err: err})
			})
			if len(lines) != 1 || strings.Contains(fmt.Sprint(lines[0]["error"]), "ann@") != keys {
				t.Errorf("%s, keys %v: %v", name, keys, lines)
			}
		}
	}
}

func TestWhatIsToldOfATransaction(t *testing.T) {
	t.Parallel()
	l := &observe.Log{}
	lines := written(t, l, func() {
		l.Transacted(t.Context(), ratelimit.TransactedEvent{Attempts: 4})
		l.Transacted(t.Context(), ratelimit.TransactedEvent{Attempts: 5, Queued: time.Second, Took: 2 * time.Second})
	})
	if len(lines) != 1 || lines[0]["attempts"] != 5.0 || lines[0]["queued"] != 1e9 ||
		lines[0]["took"] != 2e9 || lines[0]["level"] != "WARN" {
		t.Errorf("%v", lines)
	}
}

// However many limits a program makes up, and whatever it keeps in their names, the log does not
// grow with them.
func TestManyLimitsShareALine(t *testing.T) {
	t.Parallel()
	l := &observe.Log{}
	lines := written(t, l, func() {
		for i := range 5000 {
			e := denied()
			e.Result.Outcomes[0].Limit = fmt.Sprint("limit", i)
			l.Decided(t.Context(), e)
		}
	})
	if len(lines) != 1001 || lines[999]["limit"] != "limit999" || lines[1000]["limit"] != nil {
		t.Errorf("%d lines, the last %v", len(lines), lines[len(lines)-1])
	}
}

// counter counts what it is told.
type counter struct{ decided, transacted int }

func (c *counter) Decided(context.Context, ratelimit.DecidedEvent)       { c.decided++ }
func (c *counter) Transacted(context.Context, ratelimit.TransactedEvent) { c.transacted++ }

func TestAllAreTold(t *testing.T) {
	t.Parallel()
	var a, b counter
	o := observe.All(&a, nil, &b)
	o.Decided(t.Context(), granted(1))
	o.Transacted(t.Context(), ratelimit.TransactedEvent{})
	o.Transacted(t.Context(), ratelimit.TransactedEvent{})
	if want := (counter{1, 2}); a != want || b != want {
		t.Errorf("%+v, %+v", a, b)
	}
}
