package statements

import "strings"

const (
	// columns are what statements on one row answer with.
	columns = `b.value, b.ts, b.paused_until, b.delay, b.moved`

	// clock is the clock of statements that write a row.
	clock = `coalesce($8::timestamptz, clock_timestamp())`

	// What upserts set. A clock that was set back does not move ts back. A pause that is over goes,
	// so that the answer of a take has a pause only if the take was made in one.
	tsForward = `ts = greatest(b.ts, excluded.ts)`
	pauseOver = `paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END`
	newRule   = `capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin`

	// isClosed is for rows of a layout that is gone.
	isClosed = `b.value = '-Infinity'`
)

// unlessClosed sets columns, except in rows of a layout that is gone.
func unlessClosed(columns ...string) string {
	for i, c := range columns {
		columns[i] = c + ` = CASE WHEN ` + isClosed + ` THEN b.` + c + ` ELSE excluded.` + c + ` END`
	}
	return strings.Join(columns, ", ")
}

// absent is the value of a row that does not exist yet. All shards of a limit exist as long as its
// head does. So a shard that does not exist is of a layout that is gone: its row is inserted as
// closed, and a process that still knows that layout then looks at the head.
func absent(value string) string {
	return `CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE ` + value + ` END`
}

// row is the row of the arguments, with a value.
func row(value string) string {
	return `VALUES ($1::text, $2::text, $3::integer, ` + value + `, ` + clock + `,
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)`
}

// upsert inserts the row of from, or changes the row that exists, if it meets the condition where,
// unless that is empty.
//
// Locks: the row, even if the condition is not met. Predicate reads: none if it is met (the arbiter
// index leads to the row); the row if not. It is no UPDATE, because that may find its row by a
// sequential scan, which takes a predicate lock on the whole table.
func (n names) upsert(from, where string, set ...string) string {
	return n.upsertMore("", from, where, set...)
}

// upsertMore is upsert for a row of more columns.
func (n names) upsertMore(more, from, where string, set ...string) string {
	if where != "" {
		where = "\nWHERE " + where
	}
	return `INSERT INTO ` + n.balance +
		` AS b (name, key, shard, value, ts, capacity, rate, period, origin` + more + `)
` + from + `
ON CONFLICT (name, key, shard) DO UPDATE SET
	` + strings.Join(set, ",\n\t") + where + `
RETURNING ` + columns
}
