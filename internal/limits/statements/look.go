package statements

// look reads a balance and the clock. It always answers with one row; its other columns are null if
// there is no balance.
//
// Locks: none. Predicate reads: the row, or the index page where it would be. A sequential scan
// would lock the whole table instead; package schema keeps the planner from choosing one while the
// table is small.
//
// $1 name $2 key $3 shard $4 clock
func (n names) look() string {
	return `SELECT ` + columns + `, coalesce($4::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one LEFT JOIN ` + n.balance +
		` b ON b.name = $1::text AND b.key = $2::text AND b.shard = $3::integer`
}

// lookShards reads all shards of a limit in its present layout. It always answers with one row: the
// number of the layout, from the head or else 1, and arrays with the shards that exist. Times are
// in microseconds; the end of the pause of a shard that is not paused is the least bigint.
//
// Locks: none. Predicate reads: as look, of all shards.
//
// $1 name $2 key $3 clock
func (n names) lookShards() string {
	return shards(`(SELECT coalesce(max(value), 1::float8) AS layout FROM `+n.balance+`
		WHERE name = $1::text AND key = $2::text AND shard = -1)`,
		n.balance+` WHERE name = $1::text AND key = $2::text AND`)
}

// lookSpread is lookShards for a limit whose rows are on several nodes. It also reads rows of
// former layouts, and ignores them.
//
// $4 the keys
func (n names) lookSpread() string {
	return `WITH l AS MATERIALIZED (
	SELECT value FROM ` + n.balance + ` WHERE name = $1::text AND key = $2::text AND shard = -1
), r AS MATERIALIZED (
	SELECT shard, value, ts, paused_until, delay, moved FROM ` + n.balance + `
	WHERE name = $1::text AND key = ANY ($4::text[]) AND shard >= 0
)
` + shards(`(SELECT coalesce(max(value), 1::float8) AS layout FROM l)`, `r WHERE`)
}

// lookClosed reads the rows of a limit's former layouts, in columns like those of lookShards. Only
// the shards mean something.
//
// Locks: none. Predicate reads: the rows of the limit.
//
// $1 name $2 keys $3 clock
func (n names) lookClosed() string {
	return `SELECT 1::float8, pg_catalog.array_agg(shard), pg_catalog.array_agg(0::float8),
	pg_catalog.array_agg(0::bigint), pg_catalog.array_agg(0::bigint), pg_catalog.array_agg(0::bigint),
	pg_catalog.array_agg(0::float8), coalesce($3::timestamptz, clock_timestamp())
FROM ` + n.balance + ` WHERE name = $1::text AND key = ANY ($2::text[]) AND shard >= 0 AND value = '-Infinity'`
}

// shards reads the shards of a layout from rows.
func shards(layout, rows string) string {
	return `SELECT h.layout, b.shards, b.balances, b.times, b.pauses, b.delays, b.moves, coalesce($3::timestamptz, clock_timestamp())
FROM (SELECT l.layout, (l.layout::integer >> 11 << 20) + ((l.layout::integer & 2047) * ((l.layout::integer & 2047) - 1) >> 1) AS first,
		(l.layout::integer & 2047) AS n
	FROM ` + layout + ` l) h
LEFT JOIN LATERAL (SELECT pg_catalog.array_agg(shard) AS shards, pg_catalog.array_agg(value) AS balances,
		pg_catalog.array_agg(` + us(`ts`) + `::bigint) AS times,
		pg_catalog.array_agg(coalesce(` + us(`paused_until`) +
		`::bigint, -9223372036854775808)) AS pauses,
		pg_catalog.array_agg(coalesce(delay, 0)) AS delays, pg_catalog.array_agg(coalesce(moved, 0)) AS moves
	FROM ` + rows + ` shard BETWEEN h.first AND h.first + h.n - 1) b ON true`
}

// lines reads the states of rows: the clock, and one row for each range of shards in which there
// are any.
//
// Locks: none. Predicate reads: the rows.
//
// $1 names $2 keys $3 the first shards $4 the last ones
func (n names) lines() string {
	return `SELECT 0::bigint, clock_timestamp(), NULL::timestamptz, NULL::bigint, NULL::float8
UNION ALL (SELECT p.nr, max(b.ts), max(b.paused_until), max(b.delay), sum(b.moved)
	FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) WITH ORDINALITY AS p (name, key, first, last, nr)
	JOIN ` + n.balance +
		` b ON b.name = p.name AND b.key = p.key AND b.shard BETWEEN p.first AND p.last
	WHERE b.key = ANY ($2::text[])
	GROUP BY p.nr)`
}

// head locks the head of a limit, which says how many shards it has, and answers with it.
//
// $1 name $2 key $3 clock
func (n names) head() string {
	return n.upsert(`VALUES ($1::text, $2::text, -1, 1, coalesce($3::timestamptz, clock_timestamp()), 0, 0, 1, NULL)`, "", tsForward)
}

// put overwrites a row. Only a transaction that has locked the limit's head may use it.
//
// Parameters as in take, except $8, which is the ts, and $10 paused_until $11 delay $12 moved
func (n names) put() string {
	return n.upsertMore(`, paused_until, delay, moved`,
		`VALUES ($1::text, $2::text, $3::integer, $7::float8, `+clock+`,
	$4::float8, $5::float8, $6::bigint, $9::timestamptz, $10::timestamptz, nullif($11::bigint, 0), nullif($12::float8, 0::float8))`,
		"",
		`value = excluded.value, ts = excluded.ts`,
		newRule,
		`paused_until = excluded.paused_until, delay = excluded.delay, moved = excluded.moved`)
}
