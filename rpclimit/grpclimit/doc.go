// Package grpclimit has the interceptors that limit the calls which a server of gRPC serves. What
// they ask, and what clients are told, is in package rpclimit.
//
//	guard := &rpclimit.Guard{Limiter: limits}
//	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, grpclimit.Unary(guard, perUser)),
//		grpc.ChainStreamInterceptor(authenticateStream, grpclimit.Stream(guard, perUser)),
//	)
//
// A server needs both: [Unary] sees no stream, and [Stream] no unary call.
package grpclimit
