// Package rpclimit lets no call of gRPC or Connect reach its handler that its limits have not
// granted. It is the middleware of [httplimit], in the terms of RPC. This package says what is
// asked of a call, and has no server library. The interceptors are in two packages beside it:
//
//	github.com/weir-go/weir/rpclimit/grpclimit     google.golang.org/grpc
//	github.com/weir-go/weir/rpclimit/connectlimit  connectrpc.com/connect
//
// For a server of gRPC:
//
//	guard := &rpclimit.Guard{Limiter: limits}
//	perUser := rpclimit.By(PerUser, rpclimit.ByUser(userOf))
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, grpclimit.Unary(guard, perUser)),
//		grpc.ChainStreamInterceptor(authenticateStream, grpclimit.Stream(guard, perUser)),
//	)
//
// For a handler of Connect:
//
//	interceptors := connect.WithInterceptors(authenticate, connectlimit.Interceptor(guard, perUser))
//
// # Ask
//
// An [Ask] is a limit, and the key for which a call asks it. Several are granted all or none, in
// one call. [Ask.Cost] takes as many tokens as a call costs, [Ask.Rule] asks by the customer's plan,
// [Ask.Only] names the procedures that a limit is for, and [Ask.Unless] lets some calls go on
// unlimited:
//
//	exports := rpclimit.By(Exports, rpclimit.ByUser(userOf)).Only("/acme.v1.Reports/Export")
//
// # Keys
//
// A client may send what it likes, so no metadata is believed by default. [ByAddress] is the
// address of the connection, or what trusted proxies say of it. [ByUser] is the user whom the
// authentication has found: its interceptor has to run first. [ByHeader] stores no secret. Keys
// that clients can make up belong behind a limit by address, as the inner one of two interceptors,
// so that the outer one denies a flood.
//
// # Answers
//
// A denied call gets ResourceExhausted, with RetryInfo and QuotaFailure in the status details. A
// database that cannot be asked is Unavailable, unless the Guard's Limiter is a
// [ratelimit.FailOpen]. [Guard.Answer] has them all. Each answer says in its metadata what is
// left: see [Guard.Fields].
//
// A [ratelimit.Shadow] refuses no call, and no answer mentions it. A Limiter's Observer sees each
// decision as ever.
//
// # Streams
//
// A stream takes once, when it begins, however many messages follow. A handler that wants to take
// for each message calls the limiter itself, and has Pass of the adapter make its error.
//
// # In a transaction
//
// A handler that takes its tokens in its own transaction answers by the same Guard: see Pass of
// the adapters.
package rpclimit
