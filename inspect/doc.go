// Package inspect reads limits and balances from their rows, without the definitions of the program
// that takes from them. It changes nothing. It reads at READ COMMITTED, in read-only transactions,
// by the primary key, a bounded number of rows at a time and with a timeout, however large the
// table is.
//
//	look, err := inspect.New(pool, inspect.Config{})
//	...
//	limits, err := look.Limits(ctx)
//	balance, err := look.Balance(ctx, "chatTokens", "acme")
//	fmt.Printf("%s has %v of %v, and all of it at %s\n", balance.Key, balance.Value, balance.Capacity, balance.FullAt.Format(time.TimeOnly))
//
// # What a row knows
//
// Each row stores the rule with which it was last written, and package inspect shows what a call
// with that rule would find. If programs use different rules, or a newer one, the next call may
// find something else: [ratelimit.Limiter.Value] returns that. A key that was never used, or was
// full and pruned, has no row.
//
// The role needs USAGE on the schema and SELECT on weir_balance.
package inspect
