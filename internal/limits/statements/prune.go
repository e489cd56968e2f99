package statements

// Statements that prune. They skip rows that others have locked, so they wait for nobody. They lock
// what they delete for no longer than a batch takes.

// prune looks at the next $4 balances after ($1, $2, $3), and deletes those that are idle:
// full by the rule in the row, which is the one that took last, and not paused. A missing
// balance is full, too. A row with a delay or moved is kept until no work can wait for it any
// more: until $6 after it was last written and its pause ended.
//
// The rows of a limit with shards are deleted together with their head, or not at all. A
// process that finds none of them takes the limit for one that was never used, and one that
// finds a shard missing looks for the head. So prune first locks all of them, and counts. A
// closed row is deleted like a missing one once no work waits in it; but row 0, from before
// there were shards, stays closed as long as there is a head.
//
// Locks: the rows that it deletes. Predicate reads: at READ COMMITTED none.
//
// $1 name $2 key $3 shard $4 batch $5 clock $6 how old a row with a delay or moved must be, in
// microseconds
func (n names) prune() string {
	return `WITH page AS MATERIALIZED (
	SELECT name, key, shard FROM ` + n.balance +
		` WHERE (name, key, shard) > ($1::text, $2::text, $3::integer)
	ORDER BY name, key, shard LIMIT $4::bigint
), c AS MATERIALIZED (
	SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock
), head AS MATERIALIZED (
	SELECT h.name, h.key, h.value FROM page JOIN ` + n.balance +
		` h USING (name, key, shard) CROSS JOIN c
	WHERE h.shard = -1 AND NOT EXISTS (
		SELECT FROM ` + n.balance + ` b
		WHERE (b.name, b.key) = (h.name, h.key) AND NOT (b.shard = -1 OR (b.shard > 0 OR b.value = '-Infinity'::float8) AND ` +
		isIdle(`$6`) + `))
), alone AS MATERIALIZED (
	SELECT b.name, b.key, b.shard FROM page JOIN ` + n.balance +
		` b USING (name, key, shard) CROSS JOIN c
	WHERE b.shard >= 0 AND (b.shard = 0) = (b.value > '-Infinity'::float8) AND ` + isIdle(`$6`) + `
	FOR UPDATE OF b SKIP LOCKED
), shards AS MATERIALIZED (
	SELECT b.name, b.key, b.shard FROM head JOIN ` + n.balance + ` b USING (name, key) CROSS JOIN c
	WHERE b.shard = -1 AND b.value = head.value OR (b.shard > 0 OR b.value = '-Infinity'::float8) AND ` +
		isIdle(`$6`) + `
	FOR UPDATE OF b SKIP LOCKED
), idle AS (
	SELECT name, key, shard FROM alone
	UNION SELECT s.name, s.key, s.shard FROM shards s
	WHERE (SELECT count(*) FROM shards o WHERE (o.name, o.key) = (s.name, s.key)) =
		(SELECT count(*) FROM ` + n.balance + ` o WHERE (o.name, o.key) = (s.name, s.key))
), gone AS (
	DELETE FROM ` + n.balance +
		` b USING idle WHERE (b.name, b.key, b.shard) = (idle.name, idle.key, idle.shard) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.name, last.key, last.shard
FROM (SELECT name, key, shard FROM page ORDER BY name DESC, key DESC, shard DESC LIMIT 1) last`
}

// isIdle is for rows that are full by the rule in them, and not paused. A closed row is full once
// its capacity, which is what it owed, has flowed in. A row with a delay or moved is idle once it
// is older than a number of microseconds.
func isIdle(than string) string {
	return `(b.paused_until IS NULL OR b.paused_until <= c.clock)
		AND CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + ` +
		stored.refill(since, `c.clock`) + ` >= b.capacity
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR ` + us(`c.clock - `+since) + ` > ` + than + `::bigint::float8)`
}

// pruneSlots deletes slots that nobody holds, once their fencing tokens are an hour old: a
// clock that is set back by less cannot give out the same token again.
//
// $1 name $2 key $3 slot $4 batch $5 clock
func (n names) pruneSlots() string {
	return `WITH page AS MATERIALIZED (
	SELECT name, key, slot FROM ` + n.slot +
		` WHERE (name, key, slot) > ($1::text, $2::text, $3::integer)
	ORDER BY name, key, slot LIMIT $4::bigint
), free AS MATERIALIZED (
	SELECT s.name, s.key, s.slot FROM page JOIN ` + n.slot + ` s USING (name, key, slot)
	CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
	WHERE ` + isForgotten + ` FOR UPDATE OF s SKIP LOCKED
), gone AS (
	DELETE FROM ` + n.slot +
		` s USING free WHERE (s.name, s.key, s.slot) = (free.name, free.key, free.slot) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.name, last.key, last.slot
FROM (SELECT name, key, slot FROM page ORDER BY name DESC, key DESC, slot DESC LIMIT 1) last`
}

// isForgotten is for slots whose token is an hour old. A token is the time in microseconds at which
// it was granted, or a little more.
const isForgotten = `s.until <= c.clock AND s.token <= round(date_part('epoch', c.clock) * 1e6::float8)::bigint - 3600000000`

// pruneSettled deletes settlements of reservations that nobody can settle any more.
//
// $1 id, after which $2 batch $3 clock
func (n names) pruneSettled() string {
	return `WITH page AS MATERIALIZED (
	SELECT id, until FROM ` + n.settled + ` WHERE id > $1::uuid ORDER BY id LIMIT $2::bigint
), gone AS (
	DELETE FROM ` + n.settled +
		` s USING page WHERE s.id = page.id AND page.until <= coalesce($3::timestamptz, clock_timestamp()) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.id FROM (SELECT id FROM page ORDER BY id DESC LIMIT 1) last`
}
