package riverjob

import "github.com/jackc/pgx/v5"

// Whole returns a transaction of the scheduler's own in which package ratelimit takes or gives back
// tokens, and which writes River's tables or those of lines as well. On Citus these are on the
// coordinator, and the tokens on a worker, so the transaction has to commit in two phases, whatever
// ratelimit.Config.Colocated says of transactions of the caller's. InTx calls it.
func Whole(tx pgx.Tx) pgx.Tx { return whole{tx} }

type whole struct{ pgx.Tx }

// WritesJobs is what package ratelimit looks for.
func (whole) WritesJobs() {}
