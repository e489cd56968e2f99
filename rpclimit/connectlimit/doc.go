// Package connectlimit has the interceptor that limits the calls to Connect handlers, over each of
// their protocols: Connect, gRPC and gRPC-Web. Package rpclimit defines which limits a call takes
// from, and what clients get. It does not link google.golang.org/grpc.
//
//	guard := &rpclimit.Guard{Limiter: limits}
//	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
//	interceptors := connect.WithInterceptors(authenticate, connectlimit.Interceptor(guard, perUser))
//	mux.Handle(searchv1connect.NewSearchServiceHandler(service, interceptors))
package connectlimit
