// Package httplimit checks the limits of a request before its handler runs. A denied request gets
// 429, a request without the key that a limit needs gets 403, and every request gets 503 if the
// database does not answer.
//
//	limits := limiter.Coalesce(pool)
//	defer limits.Close()
//
//	guard := &httplimit.Guard{Limiter: limits}
//	perAddress := guard.Limit(httplimit.By(PerAddress, httplimit.ByAddress()))
//	mux.Handle("GET /search", perAddress(http.HandlerFunc(search)))
//
// [Guard.Limit] makes a func(http.Handler) http.Handler, which every router accepts.
//
// # Ask
//
// An [Ask] is a limit and the key of a request. Several are granted all or none, in one call.
// [Ask.Cost] takes as many tokens as a request costs, [Ask.Rule] uses the rule of the customer's
// plan, and [Ask.Unless] leaves some requests unlimited:
//
//	perKey := httplimit.By(PerAPIKey, httplimit.ByHeader("X-Api-Key")).Cost(cost)
//
// # Keys
//
// Clients can send any header, so no header field is trusted by default. [ByAddress] is the address
// of the connection, or the one that trusted [Proxies] report, and [ByUser] is the user that your
// authentication has found. [Proxies.ClientAddr] returns the address itself. [ByHeader] stores no
// secret. Put a limit whose key clients can make up behind a limit by address, as the inner one of
// two middlewares, so that the outer one denies a flood.
//
// # Fields
//
// Every answer says what is left, and when there will be more, in RateLimit and RateLimit-Policy,
// which package upstream reads on the client's side. [Fields] has other formats. Retry-After is
// never earlier than those fields say, and gets jitter. All times come from the database's clock.
//
// # In a transaction
//
// A handler that takes its tokens in its own transaction answers with the same Guard: see
// [Guard.Pass].
package httplimit
