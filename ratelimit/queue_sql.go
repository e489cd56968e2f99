package ratelimit

import (
	"strconv"
	"strings"
)

// class is the first number of the advisory locks of shards: "Weir" in ASCII. The second is a hash
// of limit and key plus the shard, combined with a hash of the table's oid, so that callers of the
// same key in two schemas do not get in each other's way.
const class = 0x57656972

// queueID is the number of a row's advisory lock: what locksOf returns, combined with the table's
// oid. So callers of the same key in two schemas do not wait for each other.
const queueID = `pg_catalog.int8xor({of}, pg_catalog.int8shl({table}::regclass::oid::bigint, 16))`

// queue returns the statements that go between BEGIN and the other statements of a transaction that
// queues for rows.
//
// Each statement takes its snapshot before it runs, so a lock that the transaction itself waits for
// comes too late: above READ COMMITTED its snapshot is older than the wait. So a first transaction
// waits for a lock of the session, and ends without doing anything else. The next transaction has a
// newer snapshot. It takes the lock as its own, and releases that of the session. All of this is
// sent at once. So no lock outlives the second transaction, and a pooler that assigns connections
// per transaction does not get in the way: no transaction ends between two round trips.
func (s *statements) queue(locks []int64) []*statement {
	var lock, keep []string
	var args []any
	for i, n := range locks {
		id := s.queueID("$" + strconv.Itoa(i+1) + "::bigint")
		lock = append(lock, "pg_catalog.pg_advisory_lock("+id+")")
		keep = append(keep, "pg_catalog.pg_advisory_xact_lock("+id+"), pg_catalog.pg_advisory_unlock("+id+")")
		args = append(args, n)
	}
	return []*statement{
		{sql: "SELECT " + strings.Join(lock, ", "), args: args},
		{sql: "COMMIT AND CHAIN"},
		{sql: "SELECT " + strings.Join(keep, ", "), args: args},
	}
}

// unqueue returns a text that rolls back, and releases the locks that the session may still hold.
// Postgres warns about those that it does not hold.
func (s *statements) unqueue(locks []int64) string {
	sql := "ROLLBACK"
	for _, n := range locks {
		sql += "; SELECT pg_catalog.pg_advisory_unlock(" + s.queueID(strconv.FormatInt(n, 10)) + ")"
	}
	return sql
}

func (s *statements) queueID(of string) string {
	return strings.NewReplacer("{of}", of, "{table}", s.table()).Replace(queueID)
}
