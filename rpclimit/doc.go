// Package rpclimit checks the limits of a gRPC or Connect call before its handler runs. It does for
// RPC what [httplimit] does for HTTP. This package defines which limits a call takes from, and
// imports no server library. The interceptors are in two packages beside it:
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
// An [Ask] is a limit and the key of a call. Several are granted all or none, in one call.
// [Ask.Cost] takes as many tokens as a call costs, [Ask.Rule] uses the rule of the customer's plan,
// [Ask.Only] names the procedures that a limit is for, and [Ask.Unless] leaves some calls
// unlimited:
//
//	exports := rpclimit.By(Exports, rpclimit.ByUser(userOf)).Only("/acme.v1.Reports/Export")
//
// # Keys
//
// Clients can send any metadata, so none is trusted by default. [ByAddress] is the address of the
// connection, or the one that trusted proxies report. [ByUser] is the user that your authentication
// has found: its interceptor has to run first. [ByHeader] stores no secret. Put a limit whose key
// clients can make up behind a limit by address, as the inner one of two interceptors, so that the
// outer one denies a flood.
//
// # Answers
//
// A denied call gets ResourceExhausted, with RetryInfo and QuotaFailure in the status details. If
// the database does not answer, the call gets Unavailable, unless the Guard's Limiter is a
// [ratelimit.FailOpen]. [Guard.Answer] has all of these. The metadata of each answer says what is
// left: see [Guard.Fields].
//
// A [ratelimit.Shadow] refuses no call, and no answer mentions it. A Limiter's Observer still sees
// each decision.
//
// # Streams
//
// A stream takes once, when it begins, however many messages follow. To take for each message, a
// handler calls the limiter itself, and returns the error that the adapter's Pass makes.
//
// # In a transaction
//
// A handler that takes its tokens in its own transaction answers with the same Guard: see Pass of
// the adapters.
package rpclimit
