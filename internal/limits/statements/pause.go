package statements

// The line of a limit is the end of its pause, or now if it is not paused. Shards that were merged
// may be paused for longer, until the lines that they were made of have ended. Their balance
// already has what flows in until then: see Merged in package spread. So if the limit is paused or
// resumed, their pause is moved by as much as the lines. It always ends after that of the limit, if
// only by a microsecond, and is known by that. The argument is NULL for a limit that is not known
// to have had another layout: no row is paused for longer then.
//
// pause and resume change nothing in a row that turns out to be closed: pauseClosed and
// resumeClosed do that, once.

// isMerged tells the rows that are paused for longer than their limit.
func isMerged(line string) string { return `b.paused_until > ` + line }

// moved is a time, moved by so many microseconds. It does not add an interval to a time, which
// Citus refuses where a row is updated.
func moved(at, sign, micros string) string {
	return `to_timestamp((` + us(at+` - timestamptz '1970-01-01 00:00:00+00'`) + sign + micros +
		`::float8) / 1e6::float8)`
}

// pause is Pause of package algebra, for $10 microseconds. $11 is the line.
//
// If there is no row, no work waits. The new row still gets the delay: a window take from a row
// that was deleted since needs it, to tell how many windows have gone by since (see unused).
//
// ts is set to the clock and not to the end of the pause. So a reservation during the pause is
// decided as of now, and ts need not move back if the pause ends early.
func (n names) pause(k kind) string {
	// the same in all places of a statement
	const now = `coalesce($8::timestamptz, statement_timestamp())`
	const until = now + ` + $10::bigint::float8 * interval '1 microsecond'`
	const line = `$11::timestamptz`
	r := asked(k)
	return n.upsertMore(`, paused_until, delay`,
		`VALUES ($1::text, $2::text, $3::integer, `+absent(`$7::float8`)+`, `+now+`,
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	`+until+`, `+r.delay(`coalesce(`+line+`, `+now+`)`, until)+`)`, "",
		`value = greatest(b.value, `+stored.refilled(`excluded.ts`)+`)`,
		tsForward,
		`paused_until = CASE WHEN `+isClosed+` THEN b.paused_until
		WHEN `+isMerged(line)+`
		THEN greatest(`+moved(`b.paused_until`, ` + `, `excluded.delay`)+`,
			`+moved(`excluded.paused_until`, ` + `, `1`)+`)
		ELSE greatest(b.paused_until, excluded.paused_until) END`,
		`delay = coalesce(b.delay, 0) + CASE WHEN `+isClosed+` THEN 0
		WHEN `+isMerged(line)+` THEN excluded.delay
		ELSE `+r.delay(`greatest(b.ts, b.paused_until, excluded.ts)`, `excluded.paused_until`)+` END`)
}

// resume is Resume of package algebra. $10 is the line, and $11 since when its time stands still:
// now, or later if the clock was set back.
func (n names) resume(k kind) string {
	const line = `$10::timestamptz`
	r := asked(k)
	return n.upsertMore(`, delay`,
		`VALUES ($1::text, $2::text, $3::integer, `+absent(`$7::float8`)+`, `+clock+`,
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	`+r.delay(`$11::timestamptz`, line)+`)`, `b.paused_until > excluded.ts OR `+isClosed,
		tsForward,
		`paused_until = CASE WHEN `+isClosed+` THEN b.paused_until
		WHEN `+isMerged(line)+`
		THEN `+moved(`b.paused_until`, ` - `, `excluded.delay`)+` END`,
		`delay = coalesce(b.delay, 0) - CASE WHEN `+isClosed+` THEN 0
		WHEN `+isMerged(line)+` THEN excluded.delay
		ELSE `+r.delay(`greatest(b.ts, excluded.ts)`, `b.paused_until`)+` END`)
}

// closedLine locks the closed rows of a limit and returns the end of its pause, which is that of
// row 0: it was never merged, and is there as long as a head is. NULL if it is not closed, and long
// ago if the limit is not paused. The second column is the clock, and the third the time of row 0.
//
// Locks: the rows, in their order. Predicate reads: the rows of the limit.
//
// $1 name $2 key $3 clock
func (n names) closedLine() string {
	return `WITH held AS MATERIALIZED (
	SELECT b.shard, coalesce(b.paused_until, timestamptz '1970-01-01 00:00:00+00') AS until, b.ts
	` + n.closed() + `
)
SELECT max(held.until) FILTER (WHERE held.shard = 0), coalesce($3::timestamptz, clock_timestamp()),
	max(held.ts) FILTER (WHERE held.shard = 0)
FROM held`
}

// closed are the closed rows of a limit, locked.
func (n names) closed() string {
	return `FROM ` + n.balance + ` b
	WHERE b.name = $1::text AND b.key = $2::text AND b.shard >= 0 AND b.value = '-Infinity'
	ORDER BY b.shard FOR NO KEY UPDATE`
}

// pauseClosed pauses the closed rows of a limit, for work that still waits in them, by the rule in
// each row. resumeClosed ends such a pause.
//
// Locks: the rows, in their order. Predicate reads: the rows of the limit.
//
// $1 name $2 key $3 clock $4 line $5 microseconds
func (n names) pauseClosed() string {
	return `WITH c AS MATERIALIZED (
	SELECT $3::timestamptz AS now, $4::timestamptz AS line,
		$3::timestamptz + $5::bigint::float8 * interval '1 microsecond' AS until
), held AS MATERIALIZED (
	SELECT b.shard, ` + stored.delay(`$4::timestamptz`,
		`$3::timestamptz + $5::bigint::float8 * interval '1 microsecond'`) + ` AS delay
	` + n.closed() + `
)
UPDATE ` + n.balance + ` b SET
	ts = greatest(b.ts, c.now),
	paused_until = CASE WHEN ` + isMerged(`c.line`) + `
		THEN greatest(` + moved(`b.paused_until`, ` + `, `held.delay`) + `,
			` + moved(`c.until`, ` + `, `1`) + `)
		ELSE greatest(b.paused_until, c.until) END,
	delay = coalesce(b.delay, 0) + CASE WHEN ` + isMerged(`c.line`) + `
		THEN held.delay
		ELSE ` + stored.delay(`greatest(b.ts, b.paused_until, c.now)`, `c.until`) + ` END
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard
RETURNING true`
}

// $1 name $2 key $3 clock $4 line $5 since when its time stands still
func (n names) resumeClosed() string {
	return `WITH c AS MATERIALIZED (
	SELECT $3::timestamptz AS now, $4::timestamptz AS line
), held AS MATERIALIZED (
	SELECT b.shard, ` + stored.delay(`$5::timestamptz`, `$4::timestamptz`) + ` AS delay
	` + n.closed() + `
)
UPDATE ` + n.balance + ` b SET
	ts = greatest(b.ts, c.now),
	paused_until = CASE WHEN ` + isMerged(`c.line`) + ` THEN ` + moved(`b.paused_until`, ` - `, `held.delay`) + ` END,
	delay = coalesce(b.delay, 0) - CASE WHEN ` + isMerged(`c.line`) + `
		THEN held.delay
		ELSE ` + stored.delay(`greatest(b.ts, c.now)`, `b.paused_until`) + ` END
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard AND b.paused_until > c.now
RETURNING true`
}
