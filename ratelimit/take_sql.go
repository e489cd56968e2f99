package ratelimit

// The statements. TAKE grants, LOOK denies; why there are two of them and not one is told in protocol.go.
//
// Those that write have the same first parameters: $1 name $2 key $3 shard $4 capacity $5 rate $6 period, of $7 tokens,
// $8 clock, null for the database's $9 origin of windows, null for a bucket.
//
// Everything in SET and WHERE of ON CONFLICT is immutable and the clock stands in what would be inserted: distributed engines
// take nothing else there. Every parameter is cast, so that the texts work in each of pgx's query modes. The arithmetic is
// that of algebra.go, in the same order.
//
// Operands have exactly the types of an operator in pg_catalog. For any other types, float8 / bigint say, Postgres prefers
// an operator that another role has made for them in a schema of the search_path, and runs its code with the caller's
// rights. So it does with functions: array_agg takes any type, and needs its schema.

const (
	// columns are what every statement answers with.
	columns = `b.value, b.ts, b.paused_until, b.delay, b.moved`

	// absent is the value of a row that was not there. A shard has one as long as its limit has a head, so one that has none is
	// of a layout that is no more: it is closed, and a process that still knows that layout looks at the head.
	absent = `CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE {new} END`

	// elapsed time in whole microseconds: date_part gives seconds in float8, which the rounding makes exact again. A pause
	// is no time.
	bucketRefill = `$5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8`
	windowRefill = `$5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))`

	// what a pause from {from} to {to} puts off: microseconds, or those of whole windows
	bucketDelay = `greatest(0, round(date_part('epoch', {to} - {from}) * 1e6::float8))::bigint`
	windowDelay = `$6 * greatest(0,
		floor(round(date_part('epoch', {to} - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', {from} - $9::timestamptz) * 1e6::float8) / $6::float8))::bigint`

	// takeSQL takes $7 tokens: one row if granted, none if not. During a pause only what is reserved is granted. A pause
	// that is over is cleared, so that the answer has one only if the take was made in it.
	//
	// Locks: the row, also if nothing is granted. Predicate reads: none if granted (the arbiter index leads to the row);
	// the row if not. It waits for a concurrent transaction that holds the row and then decides on what that left, at READ
	// COMMITTED; above it, it fails with 40001.
	//
	// $10 least balance to leave $11 whether to reserve
	takeSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, {absent $4::float8 - $7::float8}, coalesce($8::timestamptz, clock_timestamp()),
	$4, $5::float8, $6::bigint, $9::timestamptz)
` + onConflictTake

	onConflictTake = `ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4, b.value + {refill}) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4, b.value + {refill}) - $7::float8 >= $10::float8
	AND {unless}
RETURNING ` + columns

	// inTime makes takeSQL one for what may wait for so long, and no longer: $11 is then, in place of whether to reserve, the
	// most microseconds from the decision until nothing is owed and no pause lasts, and $12 what need not be repaid by then. A
	// balance that is used for the first time is full, which grants whatever is not refused before.
	unpaused = `(b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)`
	inTime   = `round(date_part('epoch', {paused}) * 1e6::float8) <= $11::float8
	AND (least($4, b.value + {refill}) - $7::float8) + $12::float8 + {comes} >= 0::float8`

	// what comes in the time of $11, in which what is left of a pause is no time
	paused      = `greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)`
	bucketComes = `$5::float8 * greatest(0, $11::float8 - round(date_part('epoch', {paused}) * 1e6::float8)) / $6::float8`
	windowComes = `$5::float8 * greatest(0,
		floor((round(date_part('epoch', greatest(b.ts, excluded.ts) - $9::timestamptz) * 1e6::float8) + $11::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))`

	// takeOwnSQL is takeSQL for a shard that nobody else is expected to hold: no row if somebody does. It costs a twentieth
	// less than takeShardSQL.
	//
	// $12 advisory lock $13 that of who gathers, or null
	takeOwnSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, $3::integer, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4, $5::float8, $6::bigint, $9::timestamptz
WHERE ($13::integer IS NULL OR pg_try_advisory_xact_lock({class}, pg_catalog.int4xor($13, {here})))
	AND pg_try_advisory_xact_lock({class}, pg_catalog.int4xor($12::integer, {here}))
` + onConflictTake

	// takeShardSQL is takeSQL for a shard: the first of the candidates $3, with capacities $4 and rates $5, that no other
	// transaction holds, as far as the advisory locks $12 tell. They are only a hint: nothing goes wrong without them, but
	// that callers wait for each other or fail at COMMIT. If all are held the answer is no row, or with $13 the statement
	// waits for the first.
	//
	// The locks are asked for one by one, and none is kept but the one that is chosen: so they stand in a subquery over the
	// candidates, with nothing that would join or sort it.
	//
	// For what may wait only so long, $11 is then, and $14 what need not be repaid by then: see inTime.
	takeShardSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	c.capacity, c.rate, $6::bigint, $9::timestamptz
FROM ((SELECT u.shard, u.capacity, u.rate
	FROM unnest($3::integer[], $4::float8[], $5::float8[], $12::integer[]) AS u (shard, capacity, rate, lock)
	WHERE pg_try_advisory_xact_lock({class}, pg_catalog.int4xor(u.lock, {here})))
	UNION ALL (SELECT ($3::integer[])[1], ($4::float8[])[1], ($5::float8[])[1] WHERE $13::boolean)
	LIMIT 1) c
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + {refill}) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + {refill}) - $7::float8 >= $10::float8
	AND {unless}
RETURNING ` + columns + `, b.shard`
)
