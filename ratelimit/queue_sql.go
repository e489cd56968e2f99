package ratelimit

import (
	"strconv"
	"strings"
)

// class is the first number of the advisory locks: "Weir". The second is a hash of the limit and key plus the shard, with
// a hash of the table that the row is in: so callers of the same key in two schemas do not deny each other.
const class = 0x57656972

// queueID is the number of a row's advisory lock: what lockOf says, and which table the row is in. So callers of the same
// key in two schemas do not wait for each other.
const queueID = `pg_catalog.int8xor({of}, pg_catalog.int8shl({table}::regclass::oid::bigint, 16))`

// queue returns what goes between BEGIN and the statements of a transaction that queues for rows.
//
// A transaction's own lock comes too late for its snapshot, which each statement takes before it runs. So the lock belongs
// to the session at first, and a transaction that did nothing else ends. The next one has a newer snapshot: it takes the
// lock as its own, and releases that of the session. All of it goes in one flight. So the lock outlives no transaction, and
// a pooler that assigns connections to transactions does not notice, as none ends between flights.
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

// unqueue is the text that rolls back and releases what the session may hold of locks. Postgres warns of those that it does
// not hold.
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
