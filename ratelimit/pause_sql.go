package ratelimit

// Statements that pause and resume. Their parameters are those of take_sql.go.

const (
	// pauseSQL stops the time of a row for $10 microseconds from now on. The balance is refilled up
	// to now by the rule in the row, and stays so until the pause ends. Work that waits is delayed
	// by what this adds to the pause. A pause that ends later stays.
	//
	// If there is no row, no work waits. The new row still gets the delay: a window take from a row
	// that was deleted since needs it, to tell how many windows have gone by since (see
	// windowUnused).
	//
	// ts is set to the clock and not to the end of the pause. So a reservation during the pause is
	// decided as of now, and ts need not move back if the pause ends early.
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

	// resumeSQL ends a pause, and takes back the rest of its delay. Without a pause it changes
	// nothing. If there is no row, the limit is full.
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

	// pauseClosedSQL pauses the closed rows of a limit, for work that still waits in them, by the
	// rule in each row. resumeClosedSQL ends such a pause.
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
