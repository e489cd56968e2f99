package ratelimit

import "strings"

// Statements over many rows at once, for calls that are decided together. All rows are those of
// limits without shards. No statement waits for a row that another transaction has locked, except
// waitSQL, and newManySQL if another transaction has inserted the row and not yet committed.
//
// Each answers with the number of the row in its arguments, counted from 1. Every operator and
// function has an exact match in pg_catalog, so the search_path does not matter.
const (
	// takeManySQL takes tokens that are there, and answers with the rows that it took from. It
	// skips rows that others have locked.
	//
	// A row that is locked stays where it is, so the update finds it by its ctid. It skips a row
	// that was written after its snapshot. The LIMIT lets the planner expect few rows: so it keeps
	// one plan, which goes by the index.
	//
	// Locks: the rows that nobody else has locked, granted or not.
	//
	// $1 names $2 keys $3 capacities $4 rates $5 periods $6 origins, null for buckets $7 tokens
	// $8 clock
	takeManySQL = `UPDATE {schema}weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, b.ctid AS at, {left}
	FROM ({rows}) u JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.ctid = s.at AND s.left >= 0::float8
RETURNING s.nr, ` + columns

	// makeManySQL is takeManySQL that also inserts the rows that do not exist, with negative
	// numbers in its answer. It costs more, so it is used while missing rows are likely. It fails
	// if another transaction inserts one of them first.
	makeManySQL = `WITH s AS MATERIALIZED (
	SELECT u.*, b.at, {left}, CASE WHEN b.at IS NULL THEN NOT EXISTS (
		SELECT FROM {schema}weir_balance b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0) END AS new
	FROM ({rows}) u LEFT JOIN LATERAL (SELECT b.ctid AS at, b.value, b.ts, b.paused_until
		FROM {schema}weir_balance b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0
		FOR NO KEY UPDATE SKIP LOCKED) b ON true
), made AS (
	INSERT INTO {schema}weir_balance (name, key, shard, value, ts, capacity, rate, period, origin)
	SELECT s.name, s.key, 0, s.capacity - s.count, s.now, s.capacity, s.rate, s.period, s.origin FROM s WHERE s.new
), taken AS (
	UPDATE {schema}weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
		capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
	FROM s WHERE b.ctid = s.at AND s.left >= 0::float8
	RETURNING s.nr, ` + columns + `
)
SELECT nr, value, ts, paused_until, delay, moved FROM taken
UNION ALL SELECT -s.nr, s.capacity - s.count, s.now, NULL, NULL, NULL FROM s WHERE s.new`

	// {left} is what a take would leave, according to the rule in the arguments. {rows} are $1 -
	// $8.
	manyLeft = `greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE least(u.capacity, b.value + {refill}) - u.count END AS left`

	manyRows = `SELECT u.*, {clock8} AS now
		FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
			WITH ORDINALITY AS u (name, key, capacity, rate, period, origin, count, nr)
		LIMIT pg_catalog.cardinality($1::text[])`

	manyRefill = `CASE WHEN u.origin IS NULL
		THEN u.rate * greatest(0::float8, {us(u.now - greatest(b.ts, b.paused_until))}) / u.period::float8
		ELSE u.rate * greatest(0::float8,
			pg_catalog.floor({us(u.now - u.origin)} / u.period::float8) -
			pg_catalog.floor({us(greatest(b.ts, b.paused_until) - u.origin)} / u.period::float8)) END`

	// lookManySQL reads rows, and the clock: one answer for each, of nulls where there is no row.
	//
	// $1 names $2 keys $3 clock
	lookManySQL = `SELECT u.nr, ` + columns + `, {clock3}
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
LEFT JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0`

	// lockManySQL locks the rows that nobody else has locked, and answers with their numbers.
	// lookManySQL after it then reads what nobody else can change.
	//
	// $1 names $2 keys
	lockManySQL = `SELECT u.nr
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
FOR NO KEY UPDATE OF b SKIP LOCKED`

	// waitSQL locks one row, and waits for it if need be.
	//
	// $1 name $2 key
	waitSQL = `SELECT 1::bigint FROM {schema}weir_balance b
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 FOR NO KEY UPDATE`

	// newManySQL inserts the balances that takes have left in rows that did not exist. It fails if
	// one exists by now. putManySQL does the same for rows that are locked.
	//
	// $1 - $6 as above $7 values $8 times $9 ends of pauses, or null
	newManySQL = `INSERT INTO {schema}weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
SELECT u.*, 0 FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[],
	$7::float8[], $8::timestamptz[], $9::timestamptz[]) AS u`

	onConflictPut = `
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts, paused_until = excluded.paused_until,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin`

	putManySQL = newManySQL + onConflictPut

	// The portable forms, of one row each: distributed engines route a statement by its key, and
	// take SKIP LOCKED for one key only.
	//
	// takeOneSQL knows the row by its key: the update finds what the subquery has locked, also if
	// that was written after the snapshot. Citus wants no clock in coalesce, and no clock_timestamp
	// where a row is updated.
	takeOneSQL = `UPDATE {schema}weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, {left}
	FROM (SELECT 1::bigint AS nr, $3::float8 AS capacity, $4::float8 AS rate, $5::bigint AS period,
			$6::timestamptz AS origin, $7::float8 AS count,
			greatest($8::timestamptz, least(pg_catalog.statement_timestamp(),
				coalesce($8::timestamptz, 'infinity'::timestamptz))) AS now) u
		JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 AND s.left >= 0::float8
RETURNING s.nr, ` + columns

	lookOneSQL = `SELECT 1::bigint, ` + columns + `, {clock3}
FROM (VALUES (1)) AS one
LEFT JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0`

	lockOneSQL = waitSQL + ` SKIP LOCKED`

	newOneSQL = `INSERT INTO {schema}weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
VALUES ($1::text, $2::text, $3::float8, $4::float8, $5::bigint, $6::timestamptz,
	$7::float8, $8::timestamptz, $9::timestamptz, 0)`

	putOneSQL = newOneSQL + onConflictPut
)

// manyTexts are the texts for one schema.
type manyTexts struct{ take, make, look, lock, wait, put, new string }

func newManyTexts(prefix string, portable bool) manyTexts {
	t := manyTexts{takeManySQL, makeManySQL, lookManySQL, lockManySQL, waitSQL, putManySQL, newManySQL}
	if portable {
		t = manyTexts{takeOneSQL, "", lookOneSQL, lockOneSQL, waitSQL, putOneSQL, newOneSQL}
	}
	inner := strings.NewReplacer("{rows}", manyRows, "{left}", strings.Replace(manyLeft, "{refill}", manyRefill, 1))
	r := strings.NewReplacer("{schema}", prefix,
		"{clock3}", "coalesce($3::timestamptz, pg_catalog.clock_timestamp())",
		"{clock8}", "coalesce($8::timestamptz, pg_catalog.clock_timestamp())",
		"{us(", "pg_catalog.round(pg_catalog.date_part('epoch'::text, ", ")}", ") * 1e6::float8)")
	for _, text := range []*string{&t.take, &t.make, &t.look, &t.lock, &t.wait, &t.put, &t.new} {
		*text = r.Replace(inner.Replace(*text))
	}
	return t
}
