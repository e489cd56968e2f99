package checks

import "go/types"

// sends tells whether fn sends an HTTP request or a mail.
func sends(fn *types.Func) bool {
	return isFunc(fn, "net/http", "Get", "Head", "Post", "PostForm") ||
		isMethod(fn, "net/http", "Client", "Do", "Get", "Head", "Post", "PostForm") ||
		isMethod(fn, "net/http", "RoundTripper", "RoundTrip") ||
		isMethod(fn, "net/http", "Transport", "RoundTrip") ||
		isFunc(fn, "net/smtp", "SendMail")
}

// commits tells whether fn, a method of a value of typ, changes limits in a transaction of its own.
func commits(typ types.Type, fn *types.Func) bool {
	switch {
	case isNamed(typ, ratelimitPath, "Autocommit", "Coalesced", "FailOpen"):
		params := fn.Signature().Params()
		return params.Len() > 0 && isContext(params.At(0).Type()) &&
			fn.Name() != "CheckRateLimit" && fn.Name() != "Value"
	case isNamed(typ, ratelimitPath, "Lease"):
		return fn.Name() == "Take"
	}
	return false
}

// inserts are the methods of a River client that insert jobs in a transaction of their own.
var inserts = map[string]bool{"Insert": true, "InsertMany": true, "InsertManyFast": true}

// isTx tells whether t is a transaction.
func isTx(t types.Type) bool {
	return isNamed(t, pgxPath, "Tx") || isNamed(t, pgxpoolPath, "Tx") || isNamed(t, sqlPath, "Tx")
}

// isDatabase tells whether t sends statements to a database.
func isDatabase(t types.Type) bool {
	return isTx(t) || isNamed(t, pgxPath, "Conn") || isNamed(t, pgxpoolPath, "Pool", "Conn") ||
		isNamed(t, sqlPath, "DB", "Conn")
}

// statements are the methods of transactions, connections and pools that send statements.
var statements = map[string]bool{
	"Acquire": true, "AcquireFunc": true, "Begin": true, "BeginFunc": true, "BeginTx": true,
	"BeginTxFunc": true, "Commit": true, "Conn": true, "CopyFrom": true, "Exec": true,
	"ExecContext": true, "Prepare": true, "PrepareContext": true, "Query": true,
	"QueryContext": true, "QueryRow": true, "QueryRowContext": true, "Rollback": true,
	"SendBatch": true,
}

// writes are those of them that most likely write.
var writes = map[string]bool{
	"Begin": true, "BeginTx": true, "CopyFrom": true, "Exec": true, "ExecContext": true,
}
