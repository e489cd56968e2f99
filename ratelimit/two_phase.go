package ratelimit

// If a transaction has written one worker and tables of the coordinator, Citus commits twice: first
// on the worker, then on the coordinator. A crash in between keeps the first and loses the second.
// Citus instead prepares both before it commits, and so keeps or loses both, if the transaction has
// written a table of the coordinator that Citus manages. weir_two_phase is such a table, without
// columns and without rows.
const (
	// twoPhaseSQL is for transactions that may yet write anything.
	//
	// Locks: none that another transaction waits for. Predicate reads: the empty table.
	twoPhaseSQL = `DELETE FROM {schema}weir_two_phase`

	// twoPhaseIfSQL is for the end of a transaction. Writes to workers alone have not given it a
	// transaction id on the coordinator, and then it does nothing. Its body is a string, into which
	// the test of names in statements cannot look: it uses no name that a search_path could change.
	twoPhaseIfSQL = `DO $$BEGIN IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
	DELETE FROM {schema}weir_two_phase; END IF; END$$`
)

// marked adds the statement that requests two-phase commit, if statements write. It is for
// transactions that InTx has not begun.
func (l *Limiter) marked(statements []*statement) []*statement {
	if !l.twoPhase {
		return statements
	}
	for _, s := range statements {
		if !s.looks && s.look == nil {
			return append([]*statement{{sql: l.sql.twoPhase}}, statements...)
		}
	}
	return statements
}
