package ratelimit

// What changes a balance without deciding: give back, charge, settle, reset. The parameters are those of take_sql.go.

const (
	// refilled is the balance by the rule that stands in the row itself.
	refilled = `least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
			floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
			floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END)`

	// what is left of the $7 tokens of a take, of which $11 were used. Those of a window are gone when the row stands in a
	// later one, and of a take that was granted ahead there is left what it has of the window in which the row stands and of
	// those after it: of the debt that it left, the first window repays the oldest part, and so on. Where somebody waits the
	// window is that of the clock, if it is later: they would come in it, on top of its own. A pause puts the windows off like all else; one by the windows of
	// another rule may be no whole number of the take's, and what it lacks of one is not given back.
	bucketUnused = `($7::float8 - $11::float8)`
	windowUnused = `(CASE WHEN {later} <= 0::float8 THEN $7::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ({later} - 1::float8)) END - $11::float8)`
	windowsLater = `(floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8))`

	// given is a balance with that. It is not lifted above the capacity, nor lowered where a larger rule filled it higher.
	given = `greatest(b.value, least(b.capacity, b.value + {unused}))`

	// giveSQL gives back what is left of the $7 tokens of a take, as if it had been smaller: the balance is that at ts, and
	// what refills comes after. The clock may have been read before the statement waited for the row; it only ever makes less
	// of what is given. What this repays of a debt moves the line up, if $12. Without a row the limit is full.
	//
	// A row that is closed holds no tokens, but its line moves up. It always answers, so that the tokens are given where
	// they are now.
	//
	// Locks: the row. Predicate reads: none. An upsert and not an UPDATE: an UPDATE finds its row by whichever path the
	// planner likes, and a sequential scan takes a predicate lock on the whole table.
	//
	// $10 a full balance $11 tokens used $12 whether to move the line; for a window, the row of the take as that left it:
	// $13 its time $14 what it owed $15 its delay $16 its moved
	giveSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, {absent $10::float8}, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = {given},
	moved = CASE WHEN NOT $12::boolean OR b.value >= 0::float8 THEN b.moved
		WHEN b.value = '-Infinity' THEN coalesce(b.moved, 0) + greatest(0, {unused})
		ELSE coalesce(b.moved, 0) + (-b.value - greatest(0, -{given})) END
WHERE {unused} > 0::float8 OR b.value = '-Infinity'
RETURNING ` + columns

	// chargeSQL takes $7 tokens, whatever it leaves, ahead of those who wait: the line moves back by what it adds to the
	// debt. The rule is the one in the row.
	//
	// Locks: the row. Predicate reads: none: see giveSQL.
	chargeSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, {absent $4::float8 - $7::float8}, coalesce($8::timestamptz, clock_timestamp()),
	$4, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = {refilled} - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	moved = CASE WHEN b.value = '-Infinity' THEN b.moved
		ELSE coalesce(b.moved, 0) - (greatest(0, $7::float8 - {refilled}) - greatest(0, -{refilled})) END
RETURNING ` + columns

	// settleSQL answers with a row for the first who settles a reservation, and for nobody after until.
	//
	// Locks: the row; it waits for a concurrent transaction that settles the same. Predicate reads: none.
	//
	// $1 id $2 until $3 clock $4 key
	settleSQL = `INSERT INTO {schema}weir_settled (id, until, key)
SELECT $1::uuid, $2::timestamptz, $4::text WHERE $2::timestamptz > coalesce($3::timestamptz, clock_timestamp())
ON CONFLICT (id, key) DO NOTHING
RETURNING true`

	// resetSQL fills a balance of $7, whatever the rule. It is the one statement that may move ts back: a row that a clock
	// set far ahead has left in the future is mended by it. A pause goes on.
	//
	// Locks: the row. Predicate reads: none.
	resetSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, {absent $7::float8}, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = CASE WHEN b.value = '-Infinity' THEN b.value ELSE $7 END, ts = excluded.ts,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
RETURNING ` + columns
)
