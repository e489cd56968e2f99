package rpclimit_test

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
	"github.com/weir-go/weir/rpclimit/connectlimit"
	"github.com/weir-go/weir/rpclimit/grpclimit"
)

var PerUser = ratelimit.MustDefine("exampleUser", ratelimit.FixedWindow{Rate: 1, Period: never})

// userOf is the user whom the authentication has put into the context.
func userOf(context.Context) string { return "ann" }

func grpcServer(limits *ratelimit.Coalesced) *grpc.Server {
	guard := &rpclimit.Guard{Limiter: limits}
	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.Unary(guard, perUser)),
		grpc.ChainStreamInterceptor(grpclimit.Stream(guard, perUser)),
	)
	return server
}

func connectOptions(limits *ratelimit.Coalesced) connect.HandlerOption {
	guard := &rpclimit.Guard{Limiter: limits}
	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
	interceptors := connect.WithInterceptors(connectlimit.Interceptor(guard, perUser))
	return interceptors
}

func Example() {
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		panic(err)
	}
	limits := limiter.Coalesce(pool)
	defer limits.Close()
	defer grpcServer(limits).Stop()
	_ = connectOptions(limits)

	guard := &rpclimit.Guard{Limiter: limits}
	limited := grpclimit.Unary(guard, rpclimit.By(PerUser, rpclimit.ByUser(userOf)))
	info := &grpc.UnaryServerInfo{FullMethod: "/acme.v1.Search/Find"}
	handler := func(context.Context, any) (any, error) { return "found", nil }
	for range 2 {
		answer, err := limited(context.Background(), nil, info, handler)
		fmt.Println(answer, status.Code(err))
	}
	// Output:
	// found OK
	// <nil> ResourceExhausted
}
