// Package ratelimit takes tokens from named limits inside the caller's own Postgres transaction. If
// the transaction commits, they are taken together with its other writes. If it rolls back, nothing
// was taken.
//
// # Define
//
// A limit is a name and a rule. Define it once, in a variable:
//
//	var (
//		SignIn     = ratelimit.MustDefine("signIn", ratelimit.TokenBucket{Rate: 5, Period: 15 * time.Minute})
//		ChatTokens = ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{Rate: 40_000, Period: time.Minute})
//		PartnerAPI = ratelimit.MustDefine("partnerAPI", ratelimit.FixedWindow{Rate: 100, Period: time.Minute})
//	)
//
// A [TokenBucket] lets tokens flow in evenly and allows a burst of its capacity on top. A
// [FixedWindow] gives all tokens at the start of each window, and no more until the next. The
// limit's balances are rows of one table, one for each key. Package schema makes the table.
//
// # Take
//
// A request asks for a number of tokens of a key. Several in one call are granted all or none, in
// one round trip:
//
//	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		if err := limiter.Consume(ctx, tx, PartnerAPI.For(tenant), ChatTokens.For(org).Count(1200)); err != nil {
//			return err // a *DeniedError: which limit, and when to come again
//		}
//		_, err := tx.Exec(ctx, `INSERT INTO ...`)
//		return err
//	})
//
// [Limiter.InTx] runs the transaction at SERIALIZABLE by default, and runs it again if it conflicts
// with another: keep side effects out of it. [Limiter.RateLimit] takes any pgx.Tx, at any isolation
// level. [Limiter.InSQL] has the same verbs for database/sql, [Limiter.Autocommit] for callers
// without a transaction.
//
// # Hot limits
//
// One balance is one row, and its callers take turns. [Shards] divides it into several rows, so
// that they do not wait. Each shard is a limit by itself, with its part of the numbers and its own
// queue of reservations.
//
// # Without a transaction
//
// The limit holds however you call it. The ways to call differ in what a call costs, and in what a
// crash loses:
//
//   - [Limiter.RateLimit], in a transaction: exact, and rolls back with your writes.
//   - [Limiter.Autocommit] and [Limiter.Coalesce], without one: exact, one round trip, or two for
//     several limits. Concurrent calls of Coalesce share round trips.
//   - [Limiter.Lease], from memory: rarely a round trip. A call may be denied while other processes
//     hold tokens, and a crash loses what the process holds: one block at most.
//
// A call without an answer is not granted. Use [FailOpen] if calls must pass for a while when the
// database is away.
//
// # Reserve
//
// With [Request.OrReserve] a call is granted for later if the tokens do not exist yet. The balance
// goes below zero, later callers queue behind it, and [Result.RunAt] says when the work may run.
// Package scheduler inserts a River job for that time, in the same transaction.
//
// [Request.Within] does so only if the work may run soon enough. [Request.OnCredit] grants a large
// count at once and makes the next caller wait.
//
// # Wait
//
// [Autocommit.Wait] sleeps until the work may run. Package upstream has an http.RoundTripper that
// does so for clients of an API. [Autocommit.Do] waits, runs the work, and settles what it has
// used.
//
// # Pause
//
// When an API asks its callers to wait, [Limiter.Pause] closes the limit to all of them for that
// time. Time stands still for the limit, and reserved work is delayed by the same time. A [Lease]
// learns of the pause within a second.
//
// # Operate
//
// To try a limit out, define it with [Shadow]: it decides and reports, but denies nobody. An
// [Observer] gets every decision and what it cost. [Limiter.Prune] deletes balances that are full
// again, and [Limiter.ResetKey] makes all balances of a key full. The guides in docs/ of the
// repository say what a server needs, and what holds at which isolation level.
//
// # Errors
//
// A denial is an answer, so it is a [Result] and not an error. [Result.Err] and [Limiter.Consume]
// turn it into a [*DeniedError]. An error means that there was no answer: [ErrInvalid] for a call
// that is wrong, [ErrOutcomeUnknown] for a connection lost at COMMIT, otherwise the database's own,
// wrapped. Without an answer, do not let the call pass.
//
// # The algorithm
//
// One formula decides for both rules, from two numbers, value and ts: see [Decide]. The formula is
// that of Convex's rate limiter (https://github.com/get-convex/rate-limiter), whose outcomes on
// generated inputs are part of the tests. All times come from the database's clock, read once for
// each decision, and counted in whole microseconds.
package ratelimit
