// Package weirtest helps to test code that uses limits: time stands still until the test moves it,
// limits deny and fail on demand, and assertions that fail say what they found.
//
//	clock := new(weirtest.Clock)
//	limits := &weirtest.Limiter{Clock: clock} // in place of an *ratelimit.Autocommit
//
//	limits.Deny(SignIn, time.Minute)
//	res, err := limits.RateLimit(ctx, SignIn.For("alice"))
//	weirtest.Denied(t, res, err, SignIn)
//	clock.Add(time.Minute)
//	res, err = limits.RateLimit(ctx, SignIn.For("alice"))
//	weirtest.Granted(t, res, err)
//
// [Limiter] needs no database. It is for code that takes a [ratelimit.Verbs], or an interface with
// the methods that it calls. If your code takes tokens in its transactions, test it on Postgres:
// set [Clock] in [ratelimit.Config], and use [Drain], [Fill] and [Value] to set and check balances.
package weirtest
