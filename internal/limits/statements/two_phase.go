package statements

// If a transaction has written one worker and tables of the coordinator, Citus commits twice: first
// on the worker, then on the coordinator. A crash in between keeps the first and loses the second.
// Citus instead prepares both before it commits, and so keeps or loses both, if the transaction has
// written a table of the coordinator that Citus manages. weir_two_phase is such a table, without
// columns and without rows.

// markTwoPhase is for transactions that may yet write anything.
//
// Locks: none that another transaction waits for. Predicate reads: the empty table.
func (n names) markTwoPhase() string { return `DELETE FROM ` + n.twoPhase }

// markTwoPhaseIf is for the end of a transaction. Writes to workers alone have not given it a
// transaction id on the coordinator, and then it does nothing. It also does nothing if the client
// is connected to a worker, on which there are no tables but those that Citus manages. Its body is
// a string, into which the test of names in statements cannot look: it uses no name that a
// search_path could change.
func (n names) markTwoPhaseIf() string {
	const quote = `$weir_two_phase$` // which the name of no schema has
	return `DO ` + quote + `BEGIN IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL
		AND EXISTS (SELECT FROM pg_catalog.pg_dist_local_group WHERE groupid OPERATOR(pg_catalog.=) 0) THEN
	DELETE FROM ` + n.twoPhase + `; END IF; END` + quote
}

// ranges reads where the ranges of hashes begin by which Citus divides the table of balances: see
// package ranges. Without Citus there is no such catalog.
func (n names) ranges() string {
	return `SELECT shardminvalue::integer FROM pg_catalog.pg_dist_shard
WHERE logicalrelid OPERATOR(pg_catalog.=) ` + n.oid + ` AND shardminvalue IS NOT NULL`
}
