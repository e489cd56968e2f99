// Package weirtest makes code that uses limits testable: time stands still until the test moves it, limits deny and fail on
// demand, and what was met is told in full when it is not what was wanted.
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
// [Limiter] needs no database. It is for code that takes an interface of the verbs that it calls. Code that takes tokens in its
// transactions is tested on Postgres, where [Clock] goes into [ratelimit.Config], and [Drain], [Fill] and [Value] set and look
// at balances.
package weirtest
