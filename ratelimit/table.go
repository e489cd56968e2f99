package ratelimit

// Table names the table of balances, as it is written in SQL: for statements of one's own that read it.
func (l *Limiter) Table() string { return l.sql.prefix + "weir_balance" }
