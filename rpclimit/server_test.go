package rpclimit_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
	"github.com/weir-go/weir/weirtest"
)

type starter = func(testing.TB, *service, *rpclimit.Guard, ...rpclimit.Ask) client

// However many clients call at a time, unary or by stream, exactly the capacity is granted, and as
// many handlers run.
func TestExactlyTheCapacityIsGranted(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		const clients, calls, capacity = 8, 12, 40
		pool := pgtest.Pool(t)
		l := limiter(t, ratelimit.Config{})
		limits := l.Coalesce(pool)
		t.Cleanup(limits.Close)
		crowd := ratelimit.MustDefine("crowd", ratelimit.FixedWindow{Rate: capacity, Period: never})
		s := &service{}
		c := start(t, s, &rpclimit.Guard{Limiter: limits}, rpclimit.By(crowd, user))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var mu sync.Mutex
		count := map[code.Code]int{}
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for range calls {
					var got told
					if i%2 == 0 {
						got = c.call(ctx, as("ann"), &testpb.SimpleRequest{})
					} else {
						got = c.stream(ctx, as("ann"), 3)
					}
					if denied := got.code == code.Code_RESOURCE_EXHAUSTED; denied != (got.retry != nil) ||
						denied != (got.quota != nil) {
						t.Errorf("%+v", got)
					}
					mu.Lock()
					count[got.code]++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if count[code.Code_OK] != capacity || count[code.Code_RESOURCE_EXHAUSTED] != clients*calls-capacity {
			t.Errorf("%v, want %d granted and the rest denied", count, capacity)
		}
		if n := s.ran.Load(); n != capacity {
			t.Errorf("%d handlers ran, want %d", n, capacity)
		}
		if state, err := l.Autocommit(pool).Value(t.Context(), crowd.For("ann")); err != nil || state.Value != 0 {
			t.Errorf("%v tokens are left, %v", state.Value, err)
		}
	})
}

// The status of a denial says when to retry, no earlier than the tokens and up to a fifth later,
// and which limits denied. It names no key. Who comes then is served, and not a moment earlier.
func TestADenialSaysWhenToRetry(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		clock := weirtest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		limits := limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pgtest.Pool(t))
		wide := ratelimit.MustDefine("wide", ratelimit.TokenBucket{Rate: 100, Period: time.Minute})
		burst := ratelimit.MustDefine("burst",
			ratelimit.TokenBucket{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(2)})
		tried := ratelimit.MustDefine("tried", ratelimit.FixedWindow{Rate: 1, Period: never}, ratelimit.Shadow())
		s := &service{}
		c := start(t, s, &rpclimit.Guard{Limiter: limits},
			rpclimit.By(wide, user), rpclimit.By(burst, user), rpclimit.By(tried, user))
		for i, open := range []func() told{
			func() told { return c.call(t.Context(), as("secret"), &testpb.SimpleRequest{}) },
			func() told { return c.stream(t.Context(), as("secret"), 2) },
		} {
			for range 2 {
				if got := open(); got.code != code.Code_OK || got.header.Get("RateLimit") == "" {
					t.Fatalf("round %d: %+v", i, got)
				}
			}
			got := open()
			if got.code != code.Code_RESOURCE_EXHAUSTED || got.retry == nil || got.quota == nil || got.others != 0 {
				t.Fatalf("round %d: %+v", i, got)
			}
			const exact = 250 * time.Millisecond
			if d := got.retry.RetryDelay.AsDuration(); d < exact || d > exact+exact/5 {
				t.Errorf("round %d: retry after %v, want %v and up to a fifth more", i, d, exact)
			}
			if v := got.quota.Violations; len(v) != 1 || v[0].Subject != "limit:burst" {
				t.Errorf("round %d: violations %v", i, v)
			}
			if policies := got.header.Get("RateLimit-Policy"); policies != `"wide";q=100;w=60, "burst";q=2;w=1` ||
				got.header.Get("Retry-After") == "" {
				t.Errorf("round %d: %v", i, got.header)
			}
			if leaks(got, "secret") {
				t.Errorf("round %d: it leaks: %+v", i, got)
			}
			clock.Add(exact - time.Microsecond)
			if got := open(); got.code != code.Code_RESOURCE_EXHAUSTED {
				t.Errorf("round %d: early: %+v", i, got)
			}
			clock.Add(time.Microsecond)
			if got := open(); got.code != code.Code_OK {
				t.Errorf("round %d: at RetryAt: %+v", i, got)
			}
			clock.Add(time.Minute)
		}
		if n := s.ran.Load(); n != 6 {
			t.Errorf("%d handlers ran, want 6", n)
		}
	})
}

// A stream takes once, when it begins, and its handler has the result in its context.
func TestAStreamTakesOnce(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		limits := limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
		once := ratelimit.MustDefine("once", ratelimit.FixedWindow{Rate: 3, Period: never})
		s := &service{}
		s.stream = func(ctx context.Context) error {
			if res, ok := rpclimit.FromContext(ctx); !ok || res.Outcomes[0].Key != "ann" ||
				res.Outcomes[0].Value != float64(3-s.ran.Load()) {
				t.Errorf("%+v, %v", res, ok)
			}
			return nil
		}
		c := start(t, s, &rpclimit.Guard{Limiter: limits},
			func(ctx context.Context, call *rpclimit.Call) ([]ratelimit.Request, error) {
				if call.Message != nil || call.Procedure != duplex {
					t.Errorf("%+v", call)
				}
				return rpclimit.By(once, user)(ctx, call)
			})
		for i, want := range []code.Code{code.Code_OK, code.Code_OK, code.Code_OK, code.Code_RESOURCE_EXHAUSTED} {
			if got := c.stream(t.Context(), as("ann"), 10); got.code != want {
				t.Errorf("stream %d: %+v", i, got)
			}
		}
	})
}

// Each procedure has its own limits, by what its message costs, and some have none.
func TestProceduresHaveTheirOwnLimits(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		limits := limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
		bytes := ratelimit.MustDefine("bytes", ratelimit.FixedWindow{Rate: 100, Period: never})
		streams := ratelimit.MustDefine("streams", ratelimit.FixedWindow{Rate: 1, Period: never})
		all := ratelimit.MustDefine("all", ratelimit.FixedWindow{Rate: 4, Period: never})
		size := func(_ context.Context, call *rpclimit.Call) float64 {
			in, ok := call.Message.(*testpb.SimpleRequest)
			if !ok {
				return 1
			}
			return float64(in.ResponseSize)
		}
		internal := func(_ context.Context, call *rpclimit.Call) bool { return len(call.Header("INTERNAL")) > 0 }
		c := start(t, &service{}, &rpclimit.Guard{Limiter: limits},
			rpclimit.By(bytes, user).Only(unary).Cost(size).Unless(internal),
			rpclimit.Global(streams).Only(duplex).Unless(internal),
			rpclimit.Global(all).Only("/grpc.testing.TestService/", "/grpc.testing.Other/Call").Unless(internal),
		)
		ask := func(user string, size int32, h http.Header) told {
			if h == nil {
				h = as(user)
			}
			return c.call(t.Context(), h, &testpb.SimpleRequest{ResponseSize: size})
		}
		for i, step := range []struct {
			got  told
			want code.Code
		}{
			{ask("ann", 60, nil), code.Code_OK},
			{ask("ann", 60, nil), code.Code_RESOURCE_EXHAUSTED},
			{ask("ann", 101, nil), code.Code_INVALID_ARGUMENT},
			{ask("ann", -1, nil), code.Code_INTERNAL},
			{ask("bob", 60, nil), code.Code_OK},
			{ask("", 60, nil), code.Code_PERMISSION_DENIED},
			{ask("", 60, http.Header{"Internal": {"1"}}), code.Code_OK},
			{c.stream(t.Context(), nil, 1), code.Code_OK},
			{c.stream(t.Context(), nil, 1), code.Code_RESOURCE_EXHAUSTED},
			{ask("ann", 40, nil), code.Code_OK},
			{ask("bob", 40, nil), code.Code_RESOURCE_EXHAUSTED},
		} {
			if step.got.code != step.want {
				t.Errorf("step %d: %v, want %v", i, step.got, step.want)
			}
		}
	})
}
