package statements

import (
	"strconv"
	"strings"
)

// queueID is the number of a row's advisory lock: a hash of limit, key and shard, combined with the
// table's oid. So callers of the same key in two schemas do not wait for each other.
func (n names) queueID(of string) string {
	return `pg_catalog.int8xor(` + of + `, pg_catalog.int8shl(` + n.oid + `::bigint, 16))`
}

// Queue returns the statements that go between BEGIN and the other statements of a transaction that
// queues for rows, of which the parameters are the numbers. The second one has none.
//
// Each statement takes its snapshot before it runs, so a lock that the transaction itself waits for
// comes too late: above READ COMMITTED its snapshot is older than the wait. So a first transaction
// waits for a lock of the session, and ends without doing anything else. The next transaction has a
// newer snapshot. It takes the lock as its own, and releases that of the session. All of this is
// sent at once. So no lock outlives the second transaction, and a pooler that assigns connections
// per transaction does not get in the way: no transaction ends between two round trips.
func (s *Statements) Queue(locks int) (lock, next, keep string) {
	var locking, keeping []string
	for i := range locks {
		id := s.names.queueID(`$` + strconv.Itoa(i+1) + `::bigint`)
		locking = append(locking, `pg_catalog.pg_advisory_lock(`+id+`)`)
		keeping = append(keeping,
			`pg_catalog.pg_advisory_xact_lock(`+id+`), pg_catalog.pg_advisory_unlock(`+id+`)`)
	}
	return `SELECT ` + strings.Join(locking, ", "), `COMMIT AND CHAIN`, `SELECT ` +
		strings.Join(keeping, ", ")
}

// Unqueue returns a text that rolls back, and releases the locks that the session may still hold.
// Postgres warns about those that it does not hold.
func (s *Statements) Unqueue(locks []int64) string {
	sql := `ROLLBACK`
	for _, number := range locks {
		sql += `; SELECT pg_catalog.pg_advisory_unlock(` +
			s.names.queueID(strconv.FormatInt(number, 10)) + `)`
	}
	return sql
}
