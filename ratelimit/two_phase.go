package ratelimit

// Citus commits a transaction that has written one worker and tables of the coordinator alone as two:
// first the worker's, then the coordinator's. A crash in between keeps the one and loses the other. It
// prepares both first, and so keeps or loses both, if the transaction has written a table of the
// coordinator that Citus manages: weir_two_phase is one, without columns and without rows.
const (
	// twoPhaseSQL is for transactions of which it is not known what else they will write.
	//
	// Locks: none that another one waits for. Predicate reads: the empty table.
	twoPhaseSQL = `DELETE FROM {schema}weir_two_phase`

	// twoPhaseIfSQL is for the end of a transaction: writes to workers alone have not given it an id.
	// Its body is a string, so a test that looks for names of other roles cannot look into it: it has none.
	twoPhaseIfSQL = `DO $$BEGIN IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
	DELETE FROM {schema}weir_two_phase; END IF; END$$`
)

// marked adds what has a transaction of the caller's own commit in two phases, if statements write.
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
