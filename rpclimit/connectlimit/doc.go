// Package connectlimit has the interceptor that limits the calls which handlers of Connect serve,
// by each of the protocols that they speak: Connect, gRPC and gRPC-Web. What it asks, and what
// clients are told, is in package rpclimit. It does not link google.golang.org/grpc.
//
//	guard := &rpclimit.Guard{Limiter: limits}
//	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
//	interceptors := connect.WithInterceptors(authenticate, connectlimit.Interceptor(guard, perUser))
//	mux.Handle(searchv1connect.NewSearchServiceHandler(service, interceptors))
package connectlimit
