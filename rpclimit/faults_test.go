package rpclimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/genproto/googleapis/rpc/code"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func leaks(got told, secret string) bool {
	return strings.Contains(fmt.Sprintf("%s %v %v %v", got.text, got.header, got.retry, got.quota), secret)
}

// A database that is away is Unavailable, and nothing runs. A Guard that fails open lets calls
// through.
func TestTheDatabaseIsAway(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		pool := pgtest.Pool(t)
		auto := limiter(t, ratelimit.Config{}).Autocommit(pool)
		limit := ratelimit.MustDefine("away", ratelimit.FixedWindow{Rate: 1, Period: never})
		s := &service{}
		closed := start(t, s, &rpclimit.Guard{Limiter: auto, Logger: quiet()}, rpclimit.By(limit, user))
		open := &ratelimit.FailOpen{Limiter: auto, Most: 3, Share: -1, Logger: quiet()}
		opened := start(t, s, &rpclimit.Guard{Limiter: open, Logger: quiet()}, rpclimit.By(limit, user))
		if _, err := pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO away`); err != nil {
			t.Fatal(err)
		}
		for _, got := range []told{
			closed.call(t.Context(), as("ann"), &testpb.SimpleRequest{}), closed.stream(t.Context(), as("ann"), 1),
		} {
			if got.code != code.Code_UNAVAILABLE || got.retry != nil ||
				got.header.Get("Retry-After") != "" || leaks(got, "weir_balance") {
				t.Errorf("%+v", got)
			}
		}
		if n := s.ran.Load(); n != 0 {
			t.Errorf("%d handlers ran", n)
		}
		for i, want := range []code.Code{code.Code_OK, code.Code_OK, code.Code_OK, code.Code_UNAVAILABLE} {
			if got := opened.call(t.Context(), as("ann"),
				&testpb.SimpleRequest{}); got.code != want || got.header.Get("RateLimit") != "" {
				t.Errorf("call %d: %+v, want %v", i, got, want)
			}
		}
		if s.ran.Load() != 3 || open.Opened() != 3 {
			t.Errorf("%d handlers ran, %d were counted", s.ran.Load(), open.Opened())
		}
	})
}

// hold keeps the row of a limit until the test lets go of it.
func hold(t *testing.T, pool *pgxpool.Pool, l *ratelimit.Limiter, request ratelimit.Request) (release func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if res, err := l.RateLimit(t.Context(), tx, request); err != nil || !res.OK {
		t.Fatal(res, err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// A decision that takes too long is Unavailable by Guard.Timeout, and DeadlineExceeded by the
// deadline of the client. In both cases no handler runs.
func TestADecisionThatHangs(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		pool := pgtest.Pool(t)
		l := limiter(t, ratelimit.Config{})
		limit := ratelimit.MustDefine("hangs", ratelimit.FixedWindow{Rate: 10, Period: never})
		s := &service{}
		ask := rpclimit.By(limit, user)
		short := start(t, s, &rpclimit.Guard{Limiter: l.Autocommit(pool),
			Timeout: 50 * time.Millisecond, Logger: quiet()}, ask)
		long := start(t, s, &rpclimit.Guard{Limiter: l.Autocommit(pool), Logger: quiet()}, ask)
		defer hold(t, pool, l, limit.For("ann"))()
		if got := short.call(t.Context(), as("ann"), &testpb.SimpleRequest{}); got.code != code.Code_UNAVAILABLE {
			t.Errorf("%+v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if got := long.call(ctx, as("ann"), &testpb.SimpleRequest{}); got.code != code.Code_DEADLINE_EXCEEDED {
			t.Errorf("%+v", got)
		}
		if n := s.ran.Load(); n != 0 {
			t.Errorf("%d handlers ran", n)
		}
	})
}

// signaled tells when calls begin and end.
type signaled struct {
	*ratelimit.Autocommit
	began, ended chan error
}

func (s signaled) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	s.began <- nil
	res, err := s.Autocommit.RateLimit(ctx, requests...)
	s.ended <- err
	return res, err
}

// A client that goes while the limiter waits leaves nothing behind: no handler runs, and no token
// is taken.
func TestAClientThatGoesWhileItWaits(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		pool := pgtest.Pool(t)
		l := limiter(t, ratelimit.Config{})
		limit := ratelimit.MustDefine("goes", ratelimit.FixedWindow{Rate: 10, Period: never})
		limits := signaled{l.Autocommit(pool), make(chan error, 1), make(chan error, 1)}
		s := &service{}
		var log lockedBuffer
		g := &rpclimit.Guard{Limiter: limits, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		c := start(t, s, g, rpclimit.By(limit, user))
		release := hold(t, pool, l, limit.For("ann"))
		for _, open := range []func(context.Context) told{
			func(ctx context.Context) told { return c.call(ctx, as("ann"), &testpb.SimpleRequest{}) },
			func(ctx context.Context) told { return c.stream(ctx, as("ann"), 1) },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-limits.began; cancel() }()
			if got := open(ctx); got.code != code.Code_CANCELLED {
				t.Errorf("%+v", got)
			}
			select {
			case err := <-limits.ended: // the server has noticed
				if err == nil {
					t.Error("the row is held, and the call was decided")
				}
			case <-time.After(patience):
				t.Fatal("the server still waits for a client that has gone")
			}
			cancel()
		}
		release()
		if state, err := l.Autocommit(pool).Value(t.Context(), limit.For("ann")); err != nil || state.Value != 10 {
			t.Errorf("%v tokens are left, %v", state.Value, err)
		}
		if n := s.ran.Load(); n != 0 || log.String() != "" {
			t.Errorf("%d handlers ran, logged: %s", n, log.String())
		}
	})
}

// A handler that panics has used its tokens, and hurts nobody else.
func TestAHandlerThatPanics(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		limits := limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
		limit := ratelimit.MustDefine("panics", ratelimit.FixedWindow{Rate: 3, Period: never})
		s := &service{unary: func(_ context.Context, in *testpb.SimpleRequest) error {
			if in.FillUsername {
				panic("as asked")
			}
			return nil
		}}
		c := start(t, s, &rpclimit.Guard{Limiter: limits}, rpclimit.By(limit, user))
		for i, step := range []struct {
			panics bool
			want   code.Code
		}{
			{true, code.Code_INTERNAL}, {true, code.Code_INTERNAL}, {false, code.Code_OK}, {true, code.Code_RESOURCE_EXHAUSTED},
		} {
			if got := c.call(t.Context(), as("ann"),
				&testpb.SimpleRequest{FillUsername: step.panics}); got.code != step.want {
				t.Errorf("call %d: %+v, want %v", i, got, step.want)
			}
		}
		if n := s.ran.Load(); n != 3 {
			t.Errorf("%d handlers ran, want 3", n)
		}
	})
}

// What a handler does not use it gives back.
func TestAHandlerGivesBack(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		limits := limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
		limit := ratelimit.MustDefine("unused", ratelimit.FixedWindow{Rate: 1, Period: never})
		back := func(ctx context.Context) error {
			res, _ := rpclimit.FromContext(ctx)
			return limits.GiveBack(ctx, res)
		}
		s := &service{unary: func(ctx context.Context, _ *testpb.SimpleRequest) error {
			return back(ctx)
		}, stream: back}
		c := start(t, s, &rpclimit.Guard{Limiter: limits}, rpclimit.By(limit, user))
		for range 3 {
			if got := c.call(t.Context(), as("ann"), &testpb.SimpleRequest{}); got.code != code.Code_OK {
				t.Errorf("%+v", got)
			}
			if got := c.stream(t.Context(), as("ann"), 1); got.code != code.Code_OK {
				t.Errorf("%+v", got)
			}
		}
	})
}
