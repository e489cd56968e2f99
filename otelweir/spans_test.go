package otelweir

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// under calls fn in a span, and returns that span and those that were made in it.
func (r *rig) under(t *testing.T, fn func(context.Context)) (parent api.Span, made []trace.ReadOnlySpan) {
	t.Helper()
	before := len(r.spans.Ended())
	ctx, parent := r.traces.Tracer("test").Start(t.Context(), "handler")
	fn(ctx)
	return parent, r.spans.Ended()[before:]
}

func has(s trace.ReadOnlySpan, want ...attribute.KeyValue) error {
	for _, w := range want {
		same := func(kv attribute.KeyValue) bool { return kv.Key == w.Key && kv.Value.Emit() == w.Value.Emit() }
		if !slices.ContainsFunc(s.Attributes(), same) {
			return fmt.Errorf("no %s = %s in %v", w.Key, w.Value.Emit(), s.Attributes())
		}
	}
	return nil
}

// A call is a span of its time and what it was told, under the caller's.
func TestACallIsASpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	auto := r.limiter(t).Autocommit(pgtest.Pool(t))
	calls := ratelimit.MustDefine("calls", ratelimit.TokenBucket{Rate: 10, Period: hour})
	tokens := ratelimit.MustDefine("tokens", ratelimit.TokenBucket{Rate: 100, Period: hour})
	jobs := ratelimit.MustDefine("jobs",
		ratelimit.TokenBucket{Rate: 10, Period: hour, MaxReserved: ratelimit.Tokens(5)})
	for _, tc := range []struct {
		requests []ratelimit.Request
		want     []attribute.KeyValue
		failed   bool
	}{
		{[]ratelimit.Request{calls.For("alice").Count(7), tokens.For("alice").Count(20)}, []attribute.KeyValue{
			attribute.StringSlice("weir.limits", []string{"calls", "tokens"}),
			attribute.Float64Slice("weir.counts", []float64{7, 20}),
			attribute.Bool("weir.granted", true), attribute.String("weir.outcome", "granted"),
			attribute.Int("weir.together", 1)}, false},
		{[]ratelimit.Request{calls.For("alice").Count(4)}, []attribute.KeyValue{
			attribute.Bool("weir.granted", false), attribute.String("weir.outcome", "denied"),
			attribute.String("weir.limit", "calls"),
			attribute.Float64("weir.retry_after_s", 360), attribute.Int("weir.round_trips", 2)}, false},
		{[]ratelimit.Request{calls.For("alice").Count(5).OrReserve()}, []attribute.KeyValue{
			attribute.Bool("weir.granted", true), attribute.String("weir.outcome", "ahead"),
			attribute.Float64("weir.run_after_s", 720)}, false},
		{[]ratelimit.Request{jobs.For("alice").Count(14).OrReserve()}, []attribute.KeyValue{
			attribute.String("weir.outcome", "ahead")}, false},
		{[]ratelimit.Request{jobs.For("alice").Count(2).OrReserve()}, []attribute.KeyValue{
			attribute.String("weir.outcome", "denied"), attribute.Float64("weir.max_reserved", 5)}, false},
		{[]ratelimit.Request{calls.For("alice").Count(-1)}, []attribute.KeyValue{
			attribute.Bool("weir.granted", false), attribute.String("weir.outcome", "error"),
			attribute.String("error.type", "invalid"),
			attribute.Int("weir.round_trips", 0)}, true},
		{[]ratelimit.Request{calls.For("alice\x00")}, []attribute.KeyValue{attribute.String("error.type", "invalid")}, true},
		{[]ratelimit.Request{calls.For("alice"), calls.For("alice").OrReserve()}, []attribute.KeyValue{
			attribute.String("error.type", "invalid")}, true},
	} {
		before := time.Now()
		parent, made := r.under(t, func(ctx context.Context) { _, _ = auto.RateLimit(ctx, tc.requests...) })
		if len(made) != 1 {
			t.Fatalf("%d spans", len(made))
		}
		s := made[0]
		if s.Name() != "weir.RateLimit" || s.Parent().SpanID() != parent.SpanContext().SpanID() ||
			s.InstrumentationScope().Name != scope {
			t.Errorf("%s of %s, under %s", s.Name(), s.InstrumentationScope().Name, s.Parent().SpanID())
		}
		if s.StartTime().Before(before) || !s.EndTime().After(s.StartTime()) || s.EndTime().After(time.Now()) {
			t.Errorf("from %v to %v, called at %v", s.StartTime(), s.EndTime(), before)
		}
		if err := has(s, tc.want...); err != nil {
			t.Error(err)
		}
		said := s.Status().Description != ""
		if (s.Status().Code == codes.Error) != tc.failed || (len(s.Events()) == 1) != tc.failed || said != tc.failed {
			t.Errorf("%v, events %v", s.Status(), s.Events())
		}
		if text := fmt.Sprint(s.Attributes(), s.Events(), s.Status()); strings.Contains(text, "alice") {
			t.Errorf("the key is told: %s", text)
		}
	}
}

// What a callback gets from the library and returns names no key, and neither those that a
// reservation has taken from.
func TestErrorsOfATransactionNameNoKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	l, pool := r.limiter(t), pgtest.Pool(t)
	calls := ratelimit.MustDefine("calls", ratelimit.TokenBucket{Rate: 10, Period: hour})
	for name, fn := range map[string]func(context.Context, pgx.Tx) error{
		"another key is settled": func(ctx context.Context, tx pgx.Tx) error {
			res, err := l.RateLimit(ctx, tx, calls.For("alice"))
			if err != nil {
				return err
			}
			_, err = l.Settle(ctx, tx, res.Reservation(), calls.For("bob"))
			return err
		},
		"a key is reset in a transaction that has failed": func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT 1 / 0`); err == nil {
				return nil
			}
			return l.ResetKey(ctx, tx, "alice")
		},
		"a take that cannot be": func(context.Context, pgx.Tx) error {
			var take ratelimit.Take
			return take.UnmarshalJSON([]byte(`["calls","alice\u0000",1,0,1,0,0,0,10,3600000000,10]`))
		},
	} {
		_, made := r.under(t, func(ctx context.Context) { _ = l.InTx(ctx, pool, fn) })
		if len(made) == 0 || made[len(made)-1].Status().Description == "" {
			t.Errorf("%s: no error in %v", name, made)
		}
		for _, s := range made {
			text := fmt.Sprint(s.Attributes(), s.Events(), s.Status())
			if strings.Contains(text, "alice") || strings.Contains(text, "bob") {
				t.Errorf("%s: a key is in %s", name, text)
			}
		}
	}
}

// Keys are told to those who ask for them.
func TestKeysAreInSpansByChoice(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{TraceKeys: true})
	auto := r.limiter(t).Autocommit(pgtest.Pool(t))
	calls := ratelimit.MustDefine("calls", ratelimit.TokenBucket{Rate: 10, Period: hour})
	_, made := r.under(t, func(ctx context.Context) { _, _ = auto.RateLimit(ctx, calls.For("alice"), calls.Global()) })
	if len(made) != 1 {
		t.Fatalf("%d spans", len(made))
	}
	if err := has(made[0], attribute.StringSlice("weir.keys", []string{"alice", ""})); err != nil {
		t.Error(err)
	}
	_, made = r.under(t, func(ctx context.Context) { _, _ = auto.RateLimit(ctx, calls.For("alice\x00")) })
	if len(made) != 1 || !strings.Contains(made[0].Status().Description, "alice") {
		t.Errorf("%+v", made)
	}
}

// A transaction is a span, its calls are others beside it. To be denied is no error.
func TestATransactionIsASpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	l, pool := r.limiter(t), pgtest.Pool(t)
	bucket := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 3, Period: hour})
	stop := errors.New("stop")
	for _, tc := range []struct {
		n       float64
		end     error
		outcome string
		code    codes.Code
	}{{2, nil, "committed", codes.Unset}, {2, nil, "denied", codes.Unset}, {1, stop, "error", codes.Error}} {
		parent, made := r.under(t, func(ctx context.Context) {
			_ = l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				res, err := l.RateLimit(ctx, tx, bucket.For("k").Count(tc.n))
				return errors.Join(err, res.Err(), tc.end)
			})
		})
		if len(made) != 2 {
			t.Fatalf("%d spans", len(made))
		}
		call, tx := made[0], made[1]
		if call.Name() != "weir.RateLimit" || tx.Name() != "weir.InTx" {
			t.Errorf("%s, %s", call.Name(), tx.Name())
		}
		for _, s := range made {
			if s.Parent().SpanID() != parent.SpanContext().SpanID() {
				t.Errorf("%s is not under the caller's", s.Name())
			}
		}
		if call.StartTime().Before(tx.StartTime()) || call.EndTime().After(tx.EndTime()) {
			t.Errorf("the call from %v to %v, the transaction from %v to %v",
				call.StartTime(), call.EndTime(), tx.StartTime(), tx.EndTime())
		}
		if err := has(tx, attribute.String("weir.outcome", tc.outcome), attribute.Int("weir.attempts", 1),
			attribute.Float64("weir.queued_s", 0)); err != nil {
			t.Error(err)
		}
		if tx.Status().Code != tc.code || (len(tx.Events()) == 1) != (tc.code == codes.Error) {
			t.Errorf("%s: %v, events %v", tc.outcome, tx.Status(), tx.Events())
		}
	}
}

// Where nobody records there is no span, unless all are asked for.
func TestSpansAreMadeWhereTheCallerIsRecorded(t *testing.T) {
	t.Parallel()
	unsampled := api.ContextWithSpanContext(context.Background(),
		api.NewSpanContext(api.SpanContextConfig{TraceID: api.TraceID{1}, SpanID: api.SpanID{2}}))
	l := ratelimit.MustDefine("l", ratelimit.TokenBucket{Rate: 3, Period: hour})
	for all, want := range map[bool]int{false: 0, true: 2} {
		r := newRig(t, Config{TraceAll: all})
		// the sampler does not take what is under the second
		for _, ctx := range []context.Context{context.Background(), unsampled} {
			r.Decided(ctx, decided(l.Global()))
			r.Transacted(ctx, ratelimit.TransactedEvent{Began: t0, Took: 1, Attempts: 1})
		}
		if got := len(r.spans.Ended()); got != want {
			t.Errorf("all %v: %d spans, want %d", all, got, want)
		}
	}
}
