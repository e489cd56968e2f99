// Package ratelimit takes tokens from named limits inside the caller's own Postgres transaction: they are taken if that
// commits, together with whatever else it wrote, and if it rolls back they never were.
//
// # Define
//
// A limit is a name and a rule, defined once, in a variable:
//
//	var (
//		SignIn     = ratelimit.MustDefine("signIn", ratelimit.TokenBucket{Rate: 5, Period: 15 * time.Minute})
//		ChatTokens = ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{Rate: 40_000, Period: time.Minute})
//		PartnerAPI = ratelimit.MustDefine("partnerAPI", ratelimit.FixedWindow{Rate: 100, Period: time.Minute})
//	)
//
// A [TokenBucket] lets tokens flow in evenly and allows a burst of its capacity on top. A [FixedWindow] gives them all at
// the start of each window and never more than that within one. The limit's balances are rows of one table, one for each
// key; package schema makes it.
//
// # Take
//
// A request says how many tokens, of which key. Several in one call are granted all or none, in one round trip:
//
//	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		if err := limiter.Consume(ctx, tx, PartnerAPI.For(tenant), ChatTokens.For(org).Count(1200)); err != nil {
//			return err // a *DeniedError: which limit, and when to come again
//		}
//		_, err := tx.Exec(ctx, `INSERT INTO ...`)
//		return err
//	})
//
// [Limiter.InTx] runs the transaction at SERIALIZABLE by default, and again if it conflicts with another. [Limiter.RateLimit] takes
// any pgx.Tx, at any isolation level. [Limiter.InSQL] has the same verbs for database/sql, [Limiter.Autocommit] for callers
// without a transaction.
//
// # Hot limits
//
// One balance is one row, for which its callers queue. [Shards] divides it into several, so that they do not. Each shard
// is a limit by itself, with its part of the numbers and with a line of its own.
//
// # Without a transaction
//
// The limit holds in each way of calling; what differs is what a call costs, and what a crash does:
//
//   - [Limiter.RateLimit], in a transaction: exact, and rolls back with the writes that it belongs to.
//   - [Limiter.Autocommit] and [Limiter.Coalesce], without: exact, one round trip, which concurrent calls of the latter share.
//   - [Limiter.Lease], from memory: seldom a round trip. A call may be denied while other processes have tokens in hand, and a
//     process that crashes loses what it had: one block at most.
//
// Without an answer there is no grant. [FailOpen] is for those who must let calls through all the same, for a while.
//
// # Reserve
//
// With [Request.OrReserve] a call is granted ahead of time where the tokens do not exist yet. The balance goes below zero,
// later callers queue up behind it, and [Result.RunAt] says when the work may run. Package scheduler enqueues it as a River
// job for that time, in the same transaction.
//
// [Request.Within] does so only if it may run soon enough, and [Request.OnCredit] lets the next one pay.
//
// # Wait
//
// [Autocommit.Wait] sleeps until the work may run: for clients of an API, say, which package upstream turns into an
// http.RoundTripper.
//
// # Pause
//
// When an upstream says to come later, [Limiter.Pause] closes the limit for as long, for all callers: time stands still for
// it. What had been reserved before comes later by that, which [Outcome] tells as the difference of two Delays.
//
// # Operate
//
// A limit made with [Shadow] decides, reports and denies nobody: to try one out. An [Observer] is told of every decision and what it
// cost. [Limiter.Prune] deletes balances that are full again, and [Limiter.ResetKey] makes all balances of a key full. The guides
// in docs/ of the repository say what a server needs, and what holds at which isolation level.
//
// # Errors
//
// A denial is a [Result] and not an error, as it is an answer; [Result.Err] makes one of it where that is handier. An error
// means that there was no answer: [ErrInvalid] for a call that is wrong, [ErrOutcomeUnknown] for a connection lost at
// COMMIT, else the database's own, wrapped. Whoever guards something fails closed on it.
//
// # The algorithm
//
// Two numbers decide, value and ts, and one formula for both rules: see [Decide]. It is that of Convex's rate limiter
// (https://github.com/get-convex/rate-limiter), whose outcomes on generated inputs are part of the tests.
// All times are by the database's clock, read once for each decision, and counted in whole microseconds.
package ratelimit
