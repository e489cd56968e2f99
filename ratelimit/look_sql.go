package ratelimit

// What is read of balances, and the rows of layouts. The parameters are those of take_sql.go.

const (
	// lookSQL reads a balance: always one row, of nulls where there is no balance, with the clock beside it.
	//
	// Locks: none. Predicate reads: the row, or the index page where it would stand. For that the table must not be so small
	// that the planner would scan all of it: the schema sees to it.
	//
	// $1 name $2 key $3 shard $4 clock
	lookSQL = `SELECT b.value, b.ts, b.paused_until, b.delay, b.moved, coalesce($4::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one LEFT JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = $3::integer`

	// lookShardsSQL reads all shards of a limit in its present layout: always one row, with the number of the layout, which the
	// head says, or 1, and the shards that there are as arrays. Times are in microseconds, and of one that is not paused pauses has the least bigint.
	//
	// Locks: none. Predicate reads: as above, of all shards.
	//
	// $1 name $2 key $3 clock
	lookShardsSQL = `SELECT ` + lookAtLayout + `FROM (SELECT coalesce(max(value), 1::float8) AS layout FROM {schema}weir_balance
		WHERE name = $1::text AND key = $2::text AND shard = -1) l) h
` + lookAtRows + `FROM {schema}weir_balance WHERE name = $1::text AND key = $2::text AND shard BETWEEN h.first AND h.first + h.n - 1) b ON true`

	lookAtLayout = `h.layout, b.shards, b.balances, b.times, b.pauses, b.delays, b.moves, coalesce($3::timestamptz, clock_timestamp())
FROM (SELECT l.layout, (l.layout::integer >> 11 << 20) + (l.layout::integer & 2047) * ((l.layout::integer & 2047) - 1) / 2 AS first,
		(l.layout::integer & 2047) AS n
	`
	lookAtRows = `LEFT JOIN LATERAL (SELECT pg_catalog.array_agg(shard) AS shards, pg_catalog.array_agg(value) AS balances,
		pg_catalog.array_agg(round(date_part('epoch', ts) * 1e6::float8)::bigint) AS times,
		pg_catalog.array_agg(coalesce(round(date_part('epoch', paused_until) * 1e6::float8)::bigint, -9223372036854775808)) AS pauses,
		pg_catalog.array_agg(coalesce(delay, 0)) AS delays, pg_catalog.array_agg(coalesce(moved, 0)) AS moves
	`

	// lookSpreadSQL is lookShardsSQL where rows of the limit are on several nodes: see homes.go. It
	// reads those of former layouts, too.
	//
	// $4 the keys
	lookSpreadSQL = `WITH l AS MATERIALIZED (
	SELECT value FROM {schema}weir_balance WHERE name = $1::text AND key = $2::text AND shard = -1
), r AS MATERIALIZED (
	SELECT shard, value, ts, paused_until, delay, moved FROM {schema}weir_balance
	WHERE name = $1::text AND key = ANY ($4::text[]) AND shard >= 0
)
SELECT ` + lookAtLayout + `FROM (SELECT coalesce(max(value), 1::float8) AS layout FROM l) l) h
` + lookAtRows + `FROM r WHERE shard BETWEEN h.first AND h.first + h.n - 1) b ON true`

	// headSQL locks the head of a limit, the row that says how many shards it has, and answers with it.
	//
	// $1 name $2 key $3 clock
	headSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period)
VALUES ($1::text, $2::text, -1, 1, coalesce($3::timestamptz, clock_timestamp()), 0, 0, 1)
ON CONFLICT (name, key, shard) DO UPDATE SET ts = greatest(b.ts, excluded.ts)
RETURNING ` + columns

	// putSQL writes a row whatever stands there: only for one whose head is locked.
	//
	// Parameters as above, but for $8, which is the ts, $10 paused_until $11 delay $12 moved
	putSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until, delay, moved)
VALUES ($1::text, $2::text, $3::integer, $7::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz, $10::timestamptz, nullif($11::bigint, 0), nullif($12::float8, 0::float8))
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin,
	paused_until = excluded.paused_until, delay = excluded.delay, moved = excluded.moved
RETURNING ` + columns
)
