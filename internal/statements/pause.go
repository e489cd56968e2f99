package statements

// pause stops the time of a row for $10 microseconds from now on. The balance is refilled up to now
// by the rule in the row, and stays so until the pause ends. Work that waits is delayed by what
// this adds to the pause. A pause that ends later stays.
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
	r := asked(k)
	return n.upsertMore(`, paused_until, delay`,
		`VALUES ($1::text, $2::text, $3::integer, `+absent(`$7::float8`)+`, `+now+`,
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	`+until+`, `+r.delay(now, until)+`)`, "",
		`value = greatest(b.value, `+stored.refilled(`excluded.ts`)+`)`,
		tsForward,
		`paused_until = greatest(b.paused_until, excluded.paused_until)`,
		`delay = coalesce(b.delay, 0) + `+r.delay(`greatest(b.ts, b.paused_until, excluded.ts)`,
			`excluded.paused_until`))
}

// resume ends a pause, and takes back the rest of its delay. Without a pause it changes nothing. If
// there is no row, the limit is full.
func (n names) resume(k kind) string {
	return n.upsert(row(absent(`$7::float8`)), `b.paused_until > excluded.ts OR `+isClosed,
		tsForward,
		`paused_until = NULL`,
		`delay = coalesce(b.delay, 0) - `+asked(k).delay(`greatest(b.ts, excluded.ts)`,
			`b.paused_until`))
}

// pauseClosed pauses the closed rows of a limit, for work that still waits in them, by the rule in
// each row. resumeClosed ends such a pause.
//
// Locks: the rows, in their order. Predicate reads: the rows of the limit.
//
// $1 name $2 key $3 clock $4 microseconds
func (n names) pauseClosed() string {
	return `WITH c AS MATERIALIZED (
	SELECT c.now, c.now + $4::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) c
), held AS MATERIALIZED (
	SELECT shard FROM ` + n.balance + `
	WHERE name = $1::text AND key = $2::text AND shard >= 0 AND value = '-Infinity'
	ORDER BY shard FOR NO KEY UPDATE
)
UPDATE ` + n.balance + ` b SET
	ts = greatest(b.ts, c.now),
	paused_until = greatest(b.paused_until, c.until),
	delay = coalesce(b.delay, 0) + ` + stored.delay(`greatest(b.ts, b.paused_until, c.now)`,
		`c.until`) + `
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard
RETURNING true`
}

func (n names) resumeClosed() string {
	return `WITH c AS MATERIALIZED (
	SELECT coalesce($3::timestamptz, clock_timestamp()) AS now
), held AS MATERIALIZED (
	SELECT shard FROM ` + n.balance + `
	WHERE name = $1::text AND key = $2::text AND shard >= 0 AND value = '-Infinity' AND paused_until IS NOT NULL
	ORDER BY shard FOR NO KEY UPDATE
)
UPDATE ` + n.balance + ` b SET
	ts = greatest(b.ts, c.now),
	paused_until = NULL,
	delay = coalesce(b.delay, 0) - ` + stored.delay(`greatest(b.ts, c.now)`, `b.paused_until`) + `
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard AND b.paused_until > c.now
RETURNING true`
}
