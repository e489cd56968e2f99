package rpclimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
	"github.com/weir-go/weir/rpclimit/connectlimit"
	"github.com/weir-go/weir/rpclimit/grpclimit"
	"github.com/weir-go/weir/upstream"
)

// pass is that of the adapter which serves the test.
func pass(t *testing.T) func(context.Context, *rpclimit.Guard, ratelimit.Result, error) error {
	if strings.HasSuffix(t.Name(), "/GRPC") {
		return grpclimit.Pass
	}
	return connectlimit.Pass
}

// In a handler's own transaction the tokens are taken if it commits, and clients are told the
// same.
func TestAHandlersOwnTransaction(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		pool := pgtest.Pool(t)
		l := limiter(t, ratelimit.Config{})
		outer := ratelimit.MustDefine("outer", ratelimit.FixedWindow{Rate: 100, Period: never})
		own := ratelimit.MustDefine("own", ratelimit.FixedWindow{Rate: 2, Period: never})
		g := &rpclimit.Guard{Limiter: l.Autocommit(pool), Logger: quiet()}
		missing := map[bool]error{
			true:  status.Error(codes.NotFound, "no such thing"),
			false: connect.NewError(connect.CodeNotFound, errors.New("no such thing")),
		}[strings.HasSuffix(t.Name(), "/GRPC")]
		s := &service{}
		s.unary = func(ctx context.Context, in *testpb.SimpleRequest) error {
			var res ratelimit.Result
			err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) (err error) {
				if res, err = l.RateLimit(ctx, tx, own.For("ann")); err != nil {
					return err
				}
				if !res.OK {
					return res.Err()
				}
				switch in.ResponseSize {
				case 1:
					return missing
				case 2:
					return errors.New("secret")
				}
				return nil
			})
			return pass(t)(ctx, g, res, err)
		}
		c := start(t, s, g, rpclimit.By(outer, user))
		for i, step := range []struct {
			size int32
			want code.Code
		}{
			{0, code.Code_OK}, {1, code.Code_NOT_FOUND}, {2, code.Code_UNAVAILABLE}, {0, code.Code_OK},
			{0, code.Code_RESOURCE_EXHAUSTED}, {1, code.Code_RESOURCE_EXHAUSTED},
		} {
			got := c.call(t.Context(), as("ann"), &testpb.SimpleRequest{ResponseSize: step.size})
			if got.code != step.want || leaks(got, "secret") ||
				(got.retry != nil) != (step.want == code.Code_RESOURCE_EXHAUSTED) {
				t.Errorf("call %d: %+v, want %v", i, got, step.want)
			}
			policies := strings.Join(got.header.Values("RateLimit-Policy"), ", ")
			told := strings.Contains(policies, `"own"`)
			if want := step.want == code.Code_OK || step.want == code.Code_RESOURCE_EXHAUSTED; told != want ||
				!strings.Contains(policies, `"outer"`) {
				t.Errorf("call %d: policies %s", i, policies)
			}
		}
	})
}

// An Ask that finds out what is wrong with a call says so itself.
func TestAnAskHasAStatusOfItsOwn(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		unauthenticated := map[bool]error{
			true:  status.Error(codes.Unauthenticated, "who is it?"),
			false: connect.NewError(connect.CodeUnauthenticated, errors.New("who is it?")),
		}[strings.HasSuffix(t.Name(), "/GRPC")]
		c := start(t, &service{}, &rpclimit.Guard{},
			func(context.Context, *rpclimit.Call) ([]ratelimit.Request, error) {
				return nil, unauthenticated
			})
		for _, got := range []told{c.call(t.Context(), nil, &testpb.SimpleRequest{}), c.stream(t.Context(), nil, 1)} {
			if got.code != code.Code_UNAUTHENTICATED || !strings.HasSuffix(got.text, "who is it?") {
				t.Errorf("%+v", got)
			}
		}
	})
}

// The address of the connection is a key, and a forwarded address only if the connection is
// trusted.
func TestTheAddressOfTheConnection(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		pool := pgtest.Pool(t)
		limits := limiter(t, ratelimit.Config{}).Autocommit(pool)
		direct := ratelimit.MustDefine("direct", ratelimit.FixedWindow{Rate: 10, Period: never})
		proxied := ratelimit.MustDefine("proxied", ratelimit.FixedWindow{Rate: 10, Period: never})
		secret := ratelimit.MustDefine("secret", ratelimit.FixedWindow{Rate: 10, Period: never})
		c := start(t, &service{}, &rpclimit.Guard{Limiter: limits},
			rpclimit.By(direct, rpclimit.ByAddress()),
			rpclimit.By(proxied, rpclimit.ByAddress(netip.MustParsePrefix("127.0.0.0/8"))),
			rpclimit.By(secret, rpclimit.ByHeader("X-Api-Key")))
		h := http.Header{"X-Forwarded-For": {"6.6.6.6, 203.0.113.7"}, "X-Api-Key": {"k"}}
		for _, got := range []told{c.call(t.Context(), h, &testpb.SimpleRequest{}), c.stream(t.Context(), h, 1)} {
			if got.code != code.Code_OK {
				t.Errorf("%+v", got)
			}
		}
		for request, want := range map[ratelimit.Request]float64{
			direct.For("127.0.0.1"): 8, direct.For("203.0.113.7"): 10, direct.For("6.6.6.6"): 10,
			proxied.For("203.0.113.7"): 8, proxied.For("127.0.0.1"): 10, secret.For("k"): 10,
			secret.For("8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"): 8,
		} {
			if state, err := limits.Value(t.Context(), request); err != nil || state.Value != want {
				t.Errorf("%+v has %v left, want %v: %v", request, state.Value, want, err)
			}
		}
	})
}

// A denied unary call by the protocol of Connect is 429 with Retry-After to whoever speaks HTTP.
func TestConnectOverHTTP(t *testing.T) {
	t.Parallel()
	limits := limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
	limit := ratelimit.MustDefine("http", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	server := serveConnect(t, &service{}, &rpclimit.Guard{Limiter: limits}, rpclimit.Global(limit))
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		resp, err := server.Client().Post(server.URL+unary, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || resp.Header.Get("RateLimit") == "" {
			t.Errorf("call %d: %d %v", i, resp.StatusCode, resp.Header)
		}
		if d, ok := upstream.RetryAfter(resp.Header); i == 1 && (!ok || d < 59*time.Minute) {
			t.Errorf("%v, %v: %v", d, ok, resp.Header)
		}
	}
}

// With httplimit.None nobody is told what is left, only when to retry.
func TestTheFieldsAreAChoice(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		limits := limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
		limit := ratelimit.MustDefine("untold", ratelimit.FixedWindow{Rate: 1, Period: never})
		c := start(t, &service{}, &rpclimit.Guard{Limiter: limits, Fields: httplimit.None}, rpclimit.Global(limit))
		for i, want := range []code.Code{code.Code_OK, code.Code_RESOURCE_EXHAUSTED} {
			got := c.call(t.Context(), nil, &testpb.SimpleRequest{})
			if got.code != want || got.header.Get("RateLimit") != "" ||
				(got.header.Get("Retry-After") != "") != (i == 1) {
				t.Errorf("call %d: %+v", i, got)
			}
		}
	})
}
