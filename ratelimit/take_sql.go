package ratelimit

// The statements that take. protocol.go says why TAKE grants and LOOK denies, in two statements.
//
// Statements that write a row have the same first parameters: $1 name $2 key $3 shard $4 capacity
// $5 rate $6 period, and in most $7 tokens $8 clock, null for the database's $9 origin of windows,
// null for a bucket.
//
// SET and WHERE of ON CONFLICT use immutable functions only, and the clock is read in the row that
// would be inserted: distributed engines accept nothing else. Every parameter is cast, so that the
// texts work in each of pgx's query modes. The arithmetic is that of internal/algebra, in the same
// order.
//
// Operands have exactly the types of an operator in pg_catalog. For other types, such as float8 /
// bigint, Postgres would prefer an operator that another role has created for them in a schema of
// the search_path, and would run its code with the caller's rights. The same goes for functions:
// array_agg takes any type, so it is written with its schema.

const (
	// columns are what statements on one row answer with.
	columns = `b.value, b.ts, b.paused_until, b.delay, b.moved`

	// absent is the value of a row that does not exist yet. All shards of a limit exist as long as
	// its head does. So a shard that does not exist is of a layout that is gone: its row is
	// inserted as closed, and a process that still knows that layout then looks at the head.
	absent = `CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE {new} END`

	// The elapsed time in whole microseconds: date_part returns seconds as float8, and rounding
	// makes them exact again. The time of a pause does not count.
	bucketRefill = `$5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8`
	windowRefill = `$5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))`

	// By how much a pause from {from} to {to} delays work: in microseconds, or for windows in those
	// of whole windows.
	bucketDelay = `greatest(0, round(date_part('epoch', {to} - {from}) * 1e6::float8))::bigint`
	windowDelay = `$6 * greatest(0,
		floor(round(date_part('epoch', {to} - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', {from} - $9::timestamptz) * 1e6::float8) / $6::float8))::bigint`

	// takeSQL takes $7 tokens, and answers with a row if it grants, with none if not. During a
	// pause it grants only what is reserved. It clears a pause that is over, so that its answer has
	// a pause only if the take was made in one.
	//
	// Locks: the row, even if nothing is granted. Predicate reads: none if granted (the arbiter
	// index leads to the row); the row if not. It waits for a concurrent transaction that holds the
	// row. At READ COMMITTED it then decides on what that transaction left; above, it fails with
	// 40001.
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

	// inTime replaces unpaused in takeSQL for calls with Within. $11 is then the longest wait in
	// microseconds: by then nothing may be owed, and no pause may last. $12 is what need not be
	// repaid by then. A balance that is used for the first time is full, and grants every call that
	// was not refused before.
	unpaused = `(b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)`
	inTime   = `round(date_part('epoch', {paused}) * 1e6::float8) <= $11::float8
	AND (least($4, b.value + {refill}) - $7::float8) + $12::float8 + {comes} >= 0::float8`

	// The tokens that come within $11, without the rest of a pause.
	paused      = `greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)`
	bucketComes = `$5::float8 * greatest(0, $11::float8 - round(date_part('epoch', {paused}) * 1e6::float8)) / $6::float8`
	windowComes = `$5::float8 * greatest(0,
		floor((round(date_part('epoch', greatest(b.ts, excluded.ts) - $9::timestamptz) * 1e6::float8) + $11::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))`

	// takeOwnSQL is takeSQL for a shard that no other transaction is expected to hold. It answers
	// with no row if one does. It costs a twentieth less than takeShardSQL.
	//
	// $12 advisory lock $13 the advisory lock of gathering, or null
	takeOwnSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, $3::integer, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4, $5::float8, $6::bigint, $9::timestamptz
WHERE ($13::integer IS NULL OR pg_try_advisory_xact_lock({class}, pg_catalog.int4xor($13, {here})))
	AND pg_try_advisory_xact_lock({class}, pg_catalog.int4xor($12::integer, {here}))
` + onConflictTake

	// takeShardSQL is takeSQL for one of several shards. It takes from the first of the candidates
	// $3, with capacities $4 and rates $5, whose advisory lock in $12 no other transaction holds.
	// If all are held it answers with no row, or with $13 it waits for the first. The locks are
	// only hints: without them callers would wait for each other or fail at COMMIT, and nothing
	// worse.
	//
	// The statement must try the locks one by one, and keep none except the one of the shard that
	// it takes from. So they are in a subquery over the candidates, without a join or a sort around
	// it.
	//
	// With Within, $11 is the longest wait, and $14 what need not be repaid by then: see inTime.
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
