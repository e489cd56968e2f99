package statements

// Many are statements over many rows at once, for calls that are decided together. All rows are
// those of limits without shards. None waits for a row that another transaction has locked, except
// Wait, and New if another transaction has inserted the row and not yet committed.
//
// Each answers with the number of the row in its arguments, counted from 1.
type Many struct{ Take, Make, Look, Lock, Wait, Put, New string }

// many returns them. The portable forms are of one row each: distributed engines route a statement
// by its key, and take SKIP LOCKED for one key only. Citus has those of inRange, too.
func (n names) many(portable bool) Many {
	if portable {
		return Many{
			Take: n.takeOne(), Look: n.lookOne(), Lock: n.waitOne() + ` SKIP LOCKED`,
			Wait: n.waitOne(), Put: n.newOne() + orPut, New: n.newOne(),
		}
	}
	return Many{
		Take: n.takeMany(), Make: n.makeMany(), Look: n.lookMany(), Lock: n.lockMany(),
		Wait: n.waitOne(), Put: n.newMany() + orPut, New: n.newMany(),
	}
}

// takeMany takes tokens that are there, and answers with the rows that it took from. It skips rows
// that others have locked.
//
// A row that is locked stays where it is, so the update finds it by its ctid. It skips a row that
// was written after its snapshot.
//
// Locks: the rows that nobody else has locked, granted or not.
//
// $1 names $2 keys $3 capacities $4 rates $5 periods $6 origins, null for buckets $7 tokens $8
// clock
func (n names) takeMany() string {
	return `UPDATE ` + n.balance + ` b SET ` + takeLeft + `
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, b.ctid AS at, ` + leftOfMany + `
	FROM (` + asksOfMany + `) u JOIN ` + n.balance +
		` b ON b.name = u.name AND b.key = u.key AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.ctid = s.at AND s.left >= 0::float8
RETURNING s.nr, ` + columns
}

// inRange are statements over many rows whose keys are in one range of hashes, so that Citus keeps
// these rows in one table. From key = ANY it sees which table that is. It refuses the statement if
// the keys are in several ranges.
func (n names) inRange() Many {
	return Many{Take: n.takeInRange(), Look: n.lookMany() + ` AND ` + byKeys,
		Lock: n.locking() + "\nWHERE " + byKeys + skipLocked}
}

const byKeys = `b.key = ANY ($2::text[])`

const takeLeft = `value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin`

// leftOfMany is what a take would leave, according to the rule in the arguments.
var leftOfMany = `greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE ` + ofMany.refilled(`u.now`) + ` - u.count END AS left`

// asksOfMany are the arguments of takeMany. The LIMIT lets the planner expect few rows: so it keeps
// one plan, which goes by the index.
const asksOfMany = `SELECT u.*, coalesce($8::timestamptz, clock_timestamp()) AS now
		FROM ` + unnested + `
		LIMIT pg_catalog.cardinality($1::text[])`

const unnested = `unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
			WITH ORDINALITY AS u (name, key, capacity, rate, period, origin, count, nr)`

// takeInRange is takeMany for Citus. It knows rows by their keys, and reads the clock as takeOne
// does.
func (n names) takeInRange() string {
	return `UPDATE ` + n.balance + ` b SET ` + takeLeft + `
FROM (SELECT u.nr, u.name, u.key, u.capacity, u.rate, u.period, u.origin, ` + leftOfMany + `
	FROM (SELECT u.*, ` + clockOfOne + ` AS now
		FROM ` + unnested + `) u JOIN ` + n.balance +
		` b ON b.name = u.name AND b.key = u.key AND b.shard = 0
	WHERE ` + byKeys + `
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.name = s.name AND b.key = s.key AND b.shard = 0 AND ` + byKeys + ` AND s.left >= 0::float8
RETURNING s.nr, ` + columns
}

// makeMany is takeMany that also inserts the rows that do not exist, with negative numbers in its
// answer. It costs more, so it is used while missing rows are likely. It fails if another
// transaction inserts one of them first.
func (n names) makeMany() string {
	return `WITH s AS MATERIALIZED (
	SELECT u.*, b.at, ` + leftOfMany + `, CASE WHEN b.at IS NULL THEN NOT EXISTS (
		SELECT FROM ` + n.balance +
		` b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0) END AS new
	FROM (` + asksOfMany +
		`) u LEFT JOIN LATERAL (SELECT b.ctid AS at, b.value, b.ts, b.paused_until
		FROM ` + n.balance + ` b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0
		FOR NO KEY UPDATE SKIP LOCKED) b ON true
), made AS (
	INSERT INTO ` + n.balance + ` (name, key, shard, value, ts, capacity, rate, period, origin)
	SELECT s.name, s.key, 0, s.capacity - s.count, s.now, s.capacity, s.rate, s.period, s.origin FROM s WHERE s.new
), taken AS (
	UPDATE ` + n.balance + ` b SET ` + takeLeft + `
	FROM s WHERE b.ctid = s.at AND s.left >= 0::float8
	RETURNING s.nr, ` + columns + `
)
SELECT nr, value, ts, paused_until, delay, moved FROM taken
UNION ALL SELECT -s.nr, s.capacity - s.count, s.now, NULL, NULL, NULL FROM s WHERE s.new`
}

// lookMany reads rows, and the clock: one answer for each, of nulls where there is no row.
//
// $1 names $2 keys $3 clock
func (n names) lookMany() string {
	return `SELECT u.nr, ` + columns + `, coalesce($3::timestamptz, clock_timestamp())
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
LEFT JOIN ` + n.balance + ` b ON b.name = u.name AND b.key = u.key AND b.shard = 0`
}

// lockMany locks the rows that nobody else has locked, and answers with their numbers. lookMany
// after it then reads what nobody else can change.
//
// $1 names $2 keys
func (n names) lockMany() string { return n.locking() + skipLocked }

func (n names) locking() string {
	return `SELECT u.nr
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
JOIN ` + n.balance + ` b ON b.name = u.name AND b.key = u.key AND b.shard = 0`
}

const skipLocked = "\nFOR NO KEY UPDATE OF b SKIP LOCKED"

// newMany inserts the balances that takes have left in rows that did not exist. It fails if one
// exists by now. With orPut it does the same for rows that are locked.
//
// $1 - $6 as above $7 values $8 times $9 ends of pauses, or null
func (n names) newMany() string {
	return `INSERT INTO ` + n.balance + ` AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
SELECT u.*, 0 FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[],
	$7::float8[], $8::timestamptz[], $9::timestamptz[]) AS u`
}

const orPut = `
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts, paused_until = excluded.paused_until,
	` + newRule

// waitOne locks one row, and waits for it if need be.
//
// $1 name $2 key
func (n names) waitOne() string {
	return `SELECT 1::bigint FROM ` + n.balance + ` b
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 FOR NO KEY UPDATE`
}

// takeOne is takeMany for one row. It knows the row by its key: the update finds what the subquery
// has locked, also if that was written after the snapshot.
func (n names) takeOne() string {
	return `UPDATE ` + n.balance + ` b SET ` + takeLeft + `
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, ` + leftOfMany + `
	FROM (SELECT 1::bigint AS nr, $3::float8 AS capacity, $4::float8 AS rate, $5::bigint AS period,
			$6::timestamptz AS origin, $7::float8 AS count,
			` + clockOfOne + ` AS now) u
		JOIN ` + n.balance + ` b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 AND s.left >= 0::float8
RETURNING s.nr, ` + columns
}

// Citus wants no clock in coalesce, and no clock_timestamp where a row is updated.
const clockOfOne = `greatest($8::timestamptz, least(statement_timestamp(),
				coalesce($8::timestamptz, 'infinity'::timestamptz)))`

func (n names) lookOne() string {
	return `SELECT 1::bigint, ` + columns + `, coalesce($3::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one
LEFT JOIN ` + n.balance + ` b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0`
}

func (n names) newOne() string {
	return `INSERT INTO ` + n.balance + ` AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
VALUES ($1::text, $2::text, $3::float8, $4::float8, $5::bigint, $6::timestamptz,
	$7::float8, $8::timestamptz, $9::timestamptz, 0)`
}
