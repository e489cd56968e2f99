package ratelimit

// marked adds the statement that requests two-phase commit, if statements write. It is for
// transactions that InTx has not begun.
func (l *Limiter) marked(statements []*statement) []*statement {
	if !l.twoPhase {
		return statements
	}
	for _, s := range statements {
		if !s.looks && s.look == nil {
			return append([]*statement{{sql: l.sql.TwoPhase}}, statements...)
		}
	}
	return statements
}
