package ratelimit

// Pause and resume. The parameters are those of take_sql.go.

const (
	// pauseSQL stops the time of a row for $10 microseconds from now on: its balance is that of now until then, by the rule in
	// the row, whoever pauses it; and what waits in line is put off by what this adds to the pause. A longer pause stays. Where
	// there is no row nothing waits, but by the delay what was taken from one that is gone tells of which window it was.
	//
	// ts stays a reading of the clock, and is not set to the end of the pause: what is reserved in it is decided now, and
	// a pause that ends early does not move ts back.
	//
	// Locks: the row. Predicate reads: none: see giveSQL.
	pauseSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until, delay)
VALUES ($1::text, $2::text, $3::integer, {absent $7::float8}, {now}, $4::float8, $5::float8, $6::bigint, $9::timestamptz,
	{now} + $10::bigint::float8 * interval '1 microsecond', {fresh})
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, {refilled}),
	ts = greatest(b.ts, excluded.ts),
	paused_until = greatest(b.paused_until, excluded.paused_until),
	delay = coalesce(b.delay, 0) + {added}
RETURNING ` + columns

	// resumeSQL ends a pause, and takes back what is left of it. Without a pause it changes nothing, and without a row the
	// limit is full.
	//
	// Locks: the row. Predicate reads: none: see giveSQL.
	resumeSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, {absent $7::float8}, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	ts = greatest(b.ts, excluded.ts),
	paused_until = NULL,
	delay = coalesce(b.delay, 0) - {left}
WHERE b.paused_until > excluded.ts OR b.value = '-Infinity'
RETURNING ` + columns

	// pauseClosedSQL pauses the closed rows of a limit, for those who wait in them: by the rule in each row.
	// resumeClosedSQL ends such a pause.
	//
	// Locks: the rows, in their order. Predicate reads: the rows of the limit.
	//
	// $1 name $2 key $3 clock $4 microseconds
	pauseClosedSQL = `WITH c AS MATERIALIZED (
	SELECT c.now, c.now + $4::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) c
), held AS MATERIALIZED (
	SELECT shard FROM {schema}weir_balance
	WHERE name = $1::text AND key = $2::text AND shard >= 0 AND value = '-Infinity'
	ORDER BY shard FOR NO KEY UPDATE
)
UPDATE {schema}weir_balance b SET
	ts = greatest(b.ts, c.now),
	paused_until = greatest(b.paused_until, c.until),
	delay = coalesce(b.delay, 0) + {added}
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard
RETURNING true`

	resumeClosedSQL = `WITH c AS MATERIALIZED (
	SELECT coalesce($3::timestamptz, clock_timestamp()) AS now
), held AS MATERIALIZED (
	SELECT shard FROM {schema}weir_balance
	WHERE name = $1::text AND key = $2::text AND shard >= 0 AND value = '-Infinity' AND paused_until IS NOT NULL
	ORDER BY shard FOR NO KEY UPDATE
)
UPDATE {schema}weir_balance b SET
	ts = greatest(b.ts, c.now),
	paused_until = NULL,
	delay = coalesce(b.delay, 0) - {left}
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard AND b.paused_until > c.now
RETURNING true`
)
