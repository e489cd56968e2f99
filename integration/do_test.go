package integration

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

type doer interface {
	Do(ctx context.Context, fn func(ctx context.Context, used func(...ratelimit.Request)) error,
		requests ...ratelimit.Request) error
	Value(ctx context.Context, request ratelimit.Request) (ratelimit.State, error)
}

// However fn ends, what it has said to have used is settled, once, and what it has not spoken of
// stays charged.
func TestDoSettlesHoweverItEnds(t *testing.T) {
	t.Parallel()
	tokens := ratelimit.MustDefine("doTokens", ratelimit.TokenBucket{Rate: 1000, Period: 1000 * time.Hour})
	calls := ratelimit.MustDefine("doCalls", ratelimit.TokenBucket{Rate: 10, Period: 1000 * time.Hour})
	failed := errors.New("failed")
	count := tokens.Global().CountInt
	type used = func(...ratelimit.Request)
	for name, c := range map[string]struct {
		fn     func(ctx context.Context, leave func(), used used) error
		tokens float64 // that are left
		calls  float64
		is     error
		panics bool
	}{
		"answer": {func(_ context.Context, _ func(), used used) error { used(count(70)); return nil }, 930, 9, nil, false},
		"more":   {func(_ context.Context, _ func(), used used) error { used(count(170)); return nil }, 830, 9, nil, false},
		"nothing": {func(_ context.Context, _ func(), used used) error {
			used(count(0), calls.Global().Count(0))
			return failed
		}, 1000, 10, failed, false},
		"error":   {func(_ context.Context, _ func(), used used) error { used(count(20)); return failed }, 980, 9, failed, false},
		"silent":  {func(context.Context, func(), used) error { return nil }, 900, 9, nil, false},
		"no idea": {func(context.Context, func(), used) error { return failed }, 900, 9, failed, false},
		"sum":     {func(_ context.Context, _ func(), used used) error { used(count(20), count(30)); return nil }, 950, 9, nil, false},
		"panic":   {func(_ context.Context, _ func(), used used) error { used(count(40)); panic("a bug") }, 960, 9, nil, true},
		"Goexit": {func(_ context.Context, _ func(), used used) error {
			used(count(50))
			runtime.Goexit()
			return nil
		}, 950, 9, nil, true},
		"wrong": {func(_ context.Context, _ func(), used used) error {
			used(tokens.For("another"))
			return failed
		}, 900, 9, ratelimit.ErrInvalid, false},
		"negative": {func(_ context.Context, _ func(), used used) error {
			used(count(-1))
			return nil
		}, 900, 9, ratelimit.ErrInvalid, false},
		"disconnect": {func(ctx context.Context, leave func(), used used) error {
			used(count(60))
			leave()
			<-ctx.Done()
			return ctx.Err()
		}, 940, 9, context.Canceled, false},
		"stream": {func(_ context.Context, _ func(), used used) error {
			for n := range int64(50) {
				used(count(n))
			}
			used(calls.Global().Count(2))
			return nil
		}, 951, 8, nil, false},
	} {
		for _, way := range []string{"Autocommit", "Coalesced", "weirtest"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				l := rig.Limiter(t, ratelimit.Config{})
				var v doer = l.Autocommit(pool)
				switch way {
				case "Coalesced":
					v = rig.Coalesce(t, l, pool)
				case "weirtest":
					v = new(weirtest.Limiter)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				var err error
				var late used
				ended, returned := make(chan struct{}), false
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					err = v.Do(ctx, func(ctx context.Context, used used) error {
						late = used
						return c.fn(ctx, leave, used)
					},
						count(100), calls.Global())
					returned = true
				}()
				<-ended
				late(count(0)) // says nothing any more
				if returned == c.panics || !errors.Is(err, c.is) || c.is == nil && err != nil {
					t.Errorf("returned %v: %v, want %v", returned, err, c.is)
				}
				for limit, want := range map[ratelimit.Limit]float64{tokens: c.tokens, calls: c.calls} {
					s, err := v.Value(t.Context(), limit.Global())
					if err != nil || s.Value < want-0.01 || s.Value > want+0.01 {
						t.Errorf("%v of %s are left, want %v: %v", s.Value, limit.Name(), want, err)
					}
				}
			})
		}
	}
}

// What is denied, cannot be decided or is wrong does not run.
func TestDoRunsOnlyWhatIsGranted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("doDenied", ratelimit.TokenBucket{Rate: 1, Period: 1000 * time.Hour})
	auto := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	fn := func(context.Context, func(...ratelimit.Request)) error { t.Error("it ran"); return nil }
	if err := auto.Consume(t.Context(), limit.Global()); err != nil {
		t.Fatal(err)
	}
	if err := auto.Do(t.Context(), fn, limit.For("k"),
		limit.Global().Within(time.Second)); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	if err := auto.Do(t.Context(), nil, limit.Global()); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("without fn: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := auto.Do(gone, fn, limit.For("k")); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	if s, err := auto.Value(t.Context(), limit.For("k")); err != nil || s.Value != 1 {
		t.Errorf("%v left, %v", s.Value, err)
	}
}

// A settlement that fails does not spoil the answer: it is logged, and what was reserved stays
// charged.
func TestDoLogsASettlementThatFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("doUnsettled", ratelimit.TokenBucket{Rate: 10, Period: 1000 * time.Hour})
	var log bytes.Buffer
	l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	err = l.Autocommit(pool).Do(t.Context(), func(ctx context.Context, used func(...ratelimit.Request)) error {
		used(limit.For("a secret").Count(1))
		_, err := pool.Exec(ctx, `ALTER TABLE weir_settled RENAME TO weir_elsewhere`)
		return err
	}, limit.For("a secret").Count(4))
	if err != nil {
		t.Error(err)
	}
	if s := log.String(); strings.Count(s, "not settled") != 1 ||
		!strings.Contains(s, "limit=doUnsettled") || strings.Contains(s, "key") {
		t.Errorf("logged %q", s)
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), limit.For("a secret")); err != nil || s.Value > 6.01 {
		t.Errorf("%v left, %v", s.Value, err)
	}
}
