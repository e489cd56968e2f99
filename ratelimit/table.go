package ratelimit

// Table returns the name of the table of balances, quoted for SQL, for your own statements that
// read it.
func (l *Limiter) Table() string { return l.sql.Table() }
