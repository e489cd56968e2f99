// Package inspect tells what limits look like from their rows alone, without the definitions of the program that takes from them, and
// changes nothing: it reads at READ COMMITTED, in read-only transactions, by the primary key, a bounded number of rows at a time and
// within a timeout, however large the table is.
//
//	look, err := inspect.New(pool, inspect.Config{})
//	...
//	limits, err := look.Limits(ctx)
//	balance, err := look.Balance(ctx, "chatTokens", "acme")
//	fmt.Printf("%s has %v of %v, and all of it at %s\n", balance.Key, balance.Value, balance.Capacity, balance.FullAt.Format(time.TimeOnly))
//
// # What a row knows
//
// Each row has the rule that wrote it last beside it, so what is told is what a call by that very rule would meet. Where the
// programs do not agree on a rule, or have another one since, it is not what the next call meets: [ratelimit.Limiter.Value] tells that. A
// key that was never used has no row, and nor has one that was full when it was pruned.
//
// The role needs USAGE on the schema and SELECT on weir_balance.
package inspect
