package ratelimit

// Statements that read balances, and that write the rows of layouts. Their parameters are those of
// take_sql.go unless listed.

const (
	// lookSQL reads a balance and the clock. It always answers with one row; its other columns are
	// null if there is no balance.
	//
	// Locks: none. Predicate reads: the row, or the index page where it would be. A sequential scan
	// would lock the whole table instead; package schema keeps the planner from choosing one while
	// the table is small.
	//
	// $1 name $2 key $3 shard $4 clock
	lookSQL = `SELECT b.value, b.ts, b.paused_until, b.delay, b.moved, coalesce($4::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one LEFT JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = $3::integer`

	// lookShardsSQL reads all shards of a limit in its present layout. It always answers with one
	// row: the number of the layout, from the head or else 1, and arrays with the shards that
	// exist. Times are in microseconds; the end of the pause of a shard that is not paused is the
	// least bigint.
	//
	// Locks: none. Predicate reads: as lookSQL, of all shards.
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

	// lookSpreadSQL is lookShardsSQL for a limit whose rows are on several nodes: see homes.go. It
	// also reads rows of former layouts, and ignores them.
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

	// headSQL locks the head of a limit, which says how many shards it has, and answers with it.
	//
	// $1 name $2 key $3 clock
	headSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period)
VALUES ($1::text, $2::text, -1, 1, coalesce($3::timestamptz, clock_timestamp()), 0, 0, 1)
ON CONFLICT (name, key, shard) DO UPDATE SET ts = greatest(b.ts, excluded.ts)
RETURNING ` + columns

	// putSQL overwrites a row. Only a transaction that has locked the limit's head may use it.
	//
	// Parameters as in take_sql.go, except $8, which is the ts, and $10 paused_until $11 delay $12
	// moved
	putSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until, delay, moved)
VALUES ($1::text, $2::text, $3::integer, $7::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz, $10::timestamptz, nullif($11::bigint, 0), nullif($12::float8, 0::float8))
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin,
	paused_until = excluded.paused_until, delay = excluded.delay, moved = excluded.moved
RETURNING ` + columns
)
