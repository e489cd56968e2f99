// Package httplimit lets no request reach its handler that its limits have not granted: a denial is 429, a database that cannot be
// asked 503, and a request without the key that a limit is for 403.
//
//	limits := limiter.Coalesce(pool)
//	defer limits.Close()
//
//	guard := &httplimit.Guard{Limiter: limits}
//	perAddress := guard.Limit(httplimit.By(PerAddress, httplimit.ByAddress()))
//	mux.Handle("GET /search", perAddress(http.HandlerFunc(search)))
//
// [Guard.Limit] makes a func(http.Handler) http.Handler, which every router takes.
//
// # Ask
//
// An [Ask] is a limit and the key by which a route asks it; several are granted all or none, in one call. [Ask.Cost] takes as many
// tokens as a request costs, and [Ask.Unless] lets some go on unlimited:
//
//	perKey := httplimit.By(PerAPIKey, httplimit.ByHeader("X-Api-Key")).Cost(cost)
//
// # Keys
//
// A client may send what it likes, so no header field is believed by default: [ByAddress] is the address of the connection, or what
// trusted [Proxies] say of it, and [ByUser] whoever the authentication has found. [ByHeader] stores no secret. A key that clients
// can make up belongs behind a limit by address: as the inner one of two middlewares, so that a flood is denied by the outer.
//
// # Fields
//
// Every answer says what is left, and when more comes, in RateLimit and RateLimit-Policy, which package upstream reads on the other
// side; [Fields] has other spellings. Retry-After is no earlier than what they say, and jittered upwards. All times are by the
// database's clock.
//
// # In a transaction
//
// A handler that takes its tokens in its own transaction answers by the same Guard: see [Guard.Pass].
package httplimit
