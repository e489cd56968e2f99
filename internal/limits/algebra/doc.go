// Package algebra is the arithmetic of limits: how balances refill, what is granted and when, and
// how a balance changes when tokens are given back or charged, and when a limit is paused, resumed
// or reset. It is pure: times are microseconds since the Unix epoch, and it reads no clock and no
// database.
//
// Package ratelimit computes the same in SQL, where it decides. The tests of package integration
// (FuzzRows, FuzzChanges) hold the two together. What decides in Go (Coalesced, leases, Decide,
// Foretell, package weirtest) computes here.
//
//	rule.go      refill, windows, RetryAt and RunAt of one balance
//	balance.go   a row as it was read
//	ask.go       a request and what it meets: granted, granted ahead, denied
//	change.go    give back, charge, pause, resume, reset
//	shares.go    the rules of the shards of a limit
package algebra
