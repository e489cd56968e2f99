// Package grpclimit has the interceptors that limit the calls to a gRPC server. Package rpclimit
// defines which limits a call takes from, and what clients get.
//
//	guard := &rpclimit.Guard{Limiter: limits}
//	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, grpclimit.Unary(guard, perUser)),
//		grpc.ChainStreamInterceptor(authenticateStream, grpclimit.Stream(guard, perUser)),
//	)
//
// A server needs both: [Unary] does not limit streams, and [Stream] does not limit unary calls.
package grpclimit
