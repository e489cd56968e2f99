package statements

import "strconv"

// class is the first number of the advisory locks of shards: "Weir" in ASCII. The second is a hash
// of limit and key plus the shard, combined with a hash of the table's oid, so that callers of the
// same key in two schemas do not get in each other's way.
const class = 0x57656972

// tryLock takes such an advisory lock, unless another transaction holds it.
func (n names) tryLock(number string) string {
	return `pg_try_advisory_xact_lock(` + strconv.Itoa(class) +
		`, pg_catalog.int4xor(` + number + `, pg_catalog.hashoid(` + n.oid + `)))`
}

// take takes $7 tokens, and answers with a row if it grants, with none if not.
//
// It waits for a concurrent transaction that holds the row. At READ COMMITTED it then decides on
// what that transaction left; above, it fails with 40001.
//
// $10 least balance to leave; the rest as may has it
func (n names) take(r rule, may condition) string {
	return n.takeFrom(row(absent(`$4::float8 - $7::float8`)), r, may)
}

// takeFrom is take with from, a SELECT of the row to insert, in place of its parameters.
func (n names) takeFrom(from string, r rule, may condition) string {
	return n.upsert(from, may(r),
		`value = `+left(r),
		tsForward, pauseOver, newRule)
}

// left is what a take leaves.
func left(r rule) string { return r.refilled(`excluded.ts`) + ` - $7::float8` }

// A condition says when a take grants.
type condition func(rule) string

// atOnce grants what leaves $10, during a pause only if $11.
func atOnce(r rule) string {
	return left(r) + ` >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)`
}

// inTime is atOnce for calls with Within. $11 is the longest wait in microseconds: by then nothing
// may be owed, and no pause may last. The parameter credit is what need not be repaid by then. A
// balance that is used for the first time is full, and grants every call that was not refused
// before.
func inTime(credit string) condition {
	const now = `greatest(b.ts, excluded.ts)`
	const resumed = `greatest(b.ts, excluded.ts, b.paused_until)`
	rest := us(resumed + ` - ` + now) // of a pause
	return func(r rule) string {
		comes := r.choose( // within $11, without the rest of a pause
			r.rate+` * greatest(0, $11::float8 - `+rest+`) / `+r.period,
			r.rate+` * `+r.windows(r.window(resumed),
				r.windowOf(`(`+us(now+` - `+r.origin)+` + $11::float8)`)))
		return left(r) + ` >= $10::float8
	AND ` + rest + ` <= $11::float8
	AND (` + left(r) + `) + ` + credit + ` + ` + comes + ` >= 0::float8`
	}
}

// orFail is for takes that fail their transaction if they do not grant. The message of the failure
// contains a column: Postgres would evaluate a constant expression while planning, and the
// statement would always fail.
func orFail(may condition) condition {
	return func(r rule) string {
		return `CASE WHEN ` + may(r) + `
	THEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END`
	}
}

// takeOwn is take for a shard that no other transaction is expected to hold. It answers with no row
// if one does. With $13 it is one part of what a call gathers. For a single candidate it costs 4 %
// less than takeShard (BenchmarkTakeShard).
//
// $12 advisory lock $13 the advisory lock of gathering, or null
func (n names) takeOwn(k kind) string {
	return n.takeFrom(`SELECT $1::text, $2::text, $3::integer, '-Infinity'::float8, `+clock+`,
	$4::float8, $5::float8, $6::bigint, $9::timestamptz
WHERE ($13::integer IS NULL OR `+n.tryLock(`$13`)+`)
	AND `+n.tryLock(`$12::integer`), asked(k), atOnce)
}

// takeShard is take for one of several shards. It takes from the first of the candidates $3 whose
// advisory lock no other transaction holds: the number of each lock is $12 xor the shard's row. If
// all are held it answers with no row, or with $13 it waits for the first. The locks are only
// hints: without them callers would wait for each other or fail at COMMIT, and nothing worse.
//
// The statement must try the locks one by one, and keep none except the one of the shard that it
// takes from. So they are in a subquery over the candidates, without a join or a sort around it.
//
// $14 the row of the first shard, which has the capacity $15 and the rate $16; $4 and $5 are those
// of the others $17 the credit of inTime
func (n names) takeShard(k kind, may condition) string {
	return n.takeFrom(ofCandidate+`
FROM ((`+n.free()+`)
	UNION ALL (SELECT ($3::integer[])[1] WHERE $13::boolean)
	LIMIT 1) c`, ofShard(k), may) + `, b.shard`
}

// takeParts is takeShard for $13 shards in place of one: it takes $7 tokens from each, and answers
// with a row for each that grants. If others hold too many of the candidates it takes nothing, and
// keeps the locks that it has. It never waits for those.
//
// It locks the rows in their order.
func (n names) takeParts(k kind) string {
	return n.takeFrom(`WITH c AS (`+n.free()+`
	LIMIT $13::bigint)
`+ofCandidate+`
FROM c WHERE (SELECT count(*) FROM c) = $13 ORDER BY c.shard`, ofShard(k), atOnce) + `, b.shard`
}

// free are the candidates that no other transaction holds. Each is locked when it is read.
func (n names) free() string {
	return `SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE ` + n.tryLock(`pg_catalog.int4xor($12::integer, u.shard)`)
}

// ofCandidate is the row of candidate c.
const ofCandidate = `SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, ` + clock + `,
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz`
