// Package statements has the texts of the statements of package ratelimit, built from one refill
// and one upsert. The file testdata/statements.sql has each as it is sent.
//
//	statements.go      all texts for one schema
//	rule.go            how a balance refills, and by how much a pause delays work
//	upsert.go          one row: inserts it, or changes the one that exists
//	take.go            takes tokens
//	give.go            gives back, charges, settles and resets
//	pause.go           pauses and resumes
//	look.go            reads balances; locks and writes the rows of layouts
//	many.go            many rows at once, for calls that are decided together
//	queue.go           with which transactions queue for rows
//	reset_key.go       fills all balances of a key
//	prune.go           deletes idle rows
//	prune_portable.go  the same, key by key
//	two_phase.go       asks Citus for two-phase commit
//
// Statements that write a row have the same first parameters: $1 name $2 key $3 shard $4 capacity
// $5 rate $6 period, and in most $7 tokens $8 clock, null for the database's $9 origin of windows,
// null for a bucket.
//
// SET and WHERE of ON CONFLICT use immutable functions only, and the clock is read in the row that
// would be inserted: distributed engines accept nothing else. Every parameter is cast, so that the
// texts work in each of pgx's query modes. The arithmetic is that of internal/limits/algebra, in
// the same order.
//
// Operands have exactly the types of an operator in pg_catalog. For other types, such as float8 /
// bigint, Postgres would prefer an operator that another role has created for them in a schema of
// the search_path, and would run its code with the caller's rights. The same goes for functions:
// array_agg takes any type, so it is written with its schema.
package statements
