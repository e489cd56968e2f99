package otelweir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// decided is a call as a Limiter tells of it, of requests that were granted.
func decided(requests ...ratelimit.Request) ratelimit.DecidedEvent {
	granted := ratelimit.Result{OK: true, At: t0}
	e := ratelimit.DecidedEvent{Requests: requests, Result: granted, Began: t0, Took: 1, Trips: 1, Together: 1}
	for _, r := range requests {
		o := ratelimit.Outcome{Limit: r.Limit().Name(), Key: r.Key(), OK: true, Value: 1,
			Capacity: 2, Rate: 2, Period: hour}
		e.Result.Outcomes = append(e.Result.Outcomes, o)
	}
	return e
}

// numberOf is how many series there are.
func (r *rig) numberOf(t testing.TB) int {
	t.Helper()
	n := 0
	for _, points := range r.series(t) {
		n += len(points)
	}
	return n
}

// However many keys there are, the series are those of one.
func TestKeysAreNoLabels(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{TraceKeys: true}) // which is of spans alone
	l := ratelimit.MustDefine("keyed", ratelimit.TokenBucket{Rate: 10, Period: hour})
	auto := r.limiter(t).Autocommit(pgtest.Pool(t))
	if _, err := auto.RateLimit(t.Context(), l.For("somebody")); err != nil {
		t.Fatal(err)
	}
	one := r.numberOf(t)
	for i := range 50 {
		if _, err := auto.RateLimit(t.Context(), l.For("somebody"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100_000 {
		r.Decided(t.Context(), decided(l.For(strconv.Itoa(i))))
	}
	if n := r.numberOf(t); n != one || one < 6 {
		t.Errorf("%d series, and %d with one key", n, one)
	}
	r.counts(t, "weir.decisions", map[string]float64{"keyed granted": 100_051})
	for name, points := range r.series(t) {
		for set := range points {
			if s := fmt.Sprint(set.Encoded(attribute.DefaultEncoder())); strings.Contains(s, "somebody") {
				t.Errorf("%s{%s}", name, s)
			}
		}
	}
}

// A program that defines limits as it runs makes no more names than the bound; what is beyond is
// counted all the same.
func TestNamesOfLimitsAreBounded(t *testing.T) {
	t.Parallel()
	for most, cfg := range map[int]Config{300: {}, 1000: {MaxLimits: 1000}, 1: {MaxLimits: 1}} {
		r := newRig(t, cfg)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 5000 {
					l := ratelimit.MustDefine("limit"+strconv.Itoa(i), ratelimit.TokenBucket{Rate: 10, Period: hour})
					r.Decided(context.Background(), decided(l.For("k").Count(2)))
				}
			})
		}
		wg.Wait()
		for name, points := range r.series(t) {
			if len(points) != most+1 {
				t.Errorf("%d series of %s, want %d", len(points), name, most+1)
			}
		}
		first := r.point(t, "weir.decisions", "weir.limit", "limit0", "weir.outcome", "granted")
		others := r.point(t, "weir.tokens", "weir.limit", "other")
		if want := float64(2 * 4 * (5000 - most)); first.sum != 4 || others.sum != want {
			t.Errorf("%v of the first, %v tokens of others, want %v", first.sum, others.sum, want)
		}
	}
}

// Those who have all seen room for one more, and then add theirs by turns, do not exceed the bound.
func TestNamesThatAreAddedAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	var n names
	n.init(1)
	first := n.add("a")
	if first == n.other || n.add("a") != first || n.of("a") != first {
		t.Error("the first has no labels of its own")
	}
	if n.add("b") != n.other || n.of("b") != n.other {
		t.Error("the second is beyond the bound, and has")
	}
}

func TestEachErrorHasAKind(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&ratelimit.InvalidError{Field: "count"}, "invalid"},
		{ratelimit.ErrNested, "nested"},
		{ratelimit.ErrClosed, "closed"},
		{ratelimit.ErrOverloaded, "overloaded"},
		{&ratelimit.ConflictError{Err: io.EOF}, "conflict"},
		{&pgconn.PgError{Code: "40001"}, "conflict"},
		{&pgconn.PgError{Code: "40P01"}, "conflict"},
		{&pgconn.PgError{Code: "42P01"}, "database"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "timeout"},
		{errors.Join(context.DeadlineExceeded, &pgconn.PgError{Code: "40001"}), "timeout"},
		{errors.Join(ratelimit.ErrOutcomeUnknown, io.ErrUnexpectedEOF), "outcome_unknown"},
		{io.ErrUnexpectedEOF, "connection"},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, "connection"},
		{errors.New("of the application"), "_OTHER"},
		{nil, "_OTHER"},
	} {
		if got := kindOf(tc.err).String(); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
		if tc.err == nil {
			continue
		}
		if got := kindOf(fmt.Errorf("ratelimit: take: %w", tc.err)).String(); got != tc.want {
			t.Errorf("wrapped %v: %s, want %s", tc.err, got, tc.want)
		}
	}
}

// A connection that was closed under its transaction is none of the server's errors.
func TestAClosedConnectionIsAnErrorOfTheConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	l, pool := r.limiter(t), pgtest.Pool(t)
	limit := ratelimit.MustDefine("cut", ratelimit.TokenBucket{Rate: 3, Period: hour})
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
			return err
		}
		if err := tx.Conn().Close(ctx); err != nil {
			return err
		}
		_, err := l.RateLimit(ctx, tx, limit.For("k"))
		return err
	})
	if err == nil {
		t.Fatal("no error")
	}
	r.counts(t, "weir.decisions", map[string]float64{"cut granted": 1, "cut error connection": 1})
	if p := r.point(t, "weir.tx.attempts", "weir.outcome", "error", "error.type", "connection"); p.count != 1 {
		t.Errorf("%v: %+v", err, p)
	}
}

// Results as other limiters than ours would make them, and none at all.
func TestResultsWithoutADecisionAreUndecided(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	l := ratelimit.MustDefine("let", ratelimit.TokenBucket{Rate: 10, Period: hour})
	for _, res := range []ratelimit.Result{{}, {OK: true}} {
		r.Decided(t.Context(), ratelimit.DecidedEvent{Requests: []ratelimit.Request{l.For("k")}, Result: res})
	}
	r.counts(t, "weir.decisions", map[string]float64{"let undecided": 2})
	if n := len(r.series(t)["weir.tokens"]); n != 0 {
		t.Errorf("tokens of %d limits", n)
	}
}

func TestUsedIsAShare(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ value, capacity, want float64 }{
		{10, 10, 0}, {11, 10, 0}, {2.5, 10, 0.75}, {0, 10, 1}, {-5, 10, 1}, {0, 0, 1}, {-3, 0, 1},
	} {
		if got := used(&ratelimit.Outcome{Value: tc.value, Capacity: tc.capacity}); got != tc.want {
			t.Errorf("%v of %v: %v, want %v", tc.value, tc.capacity, got, tc.want)
		}
	}
}
