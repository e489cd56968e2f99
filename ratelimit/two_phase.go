package ratelimit

// On Citus InTx, InSQLTx and SendBatch request two-phase commit before COMMIT, if the transaction has
// written the coordinator: see internal/limits/statements/two_phase.go. In any other transaction
// nobody knows what it will write yet, so each call that writes requests it.

// marked adds the statement that requests two-phase commit, if statements write and the transaction
// does not request it at its end. a is the attempt that tx belongs to, or nil.
//
// Config.Colocated is about transactions of the caller's own, and not about those of package
// scheduler, which writes jobs.
func (l *Limiter) marked(a *attempt, tx any, statements []*statement) []*statement {
	if !l.twoPhase || a != nil && a.l.twoPhase { // the limiter of InTx may be another one
		return statements
	}
	if _, jobs := tx.(interface{ WritesJobs() }); a == nil && l.colocated && !jobs {
		return statements
	}
	for _, s := range statements {
		if !s.looks && s.look == nil {
			return append([]*statement{{sql: l.sql.TwoPhase}}, statements...)
		}
	}
	return statements
}
