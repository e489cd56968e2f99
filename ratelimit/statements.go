package ratelimit

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

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

	// pauseSQL stops the time of a row for $10 microseconds from now on: its balance is that of now until then, by the rule in
	// the row, whoever pauses it; and what waits in line is put off by what this adds to the pause. A longer pause stays. Where
	// there is no row nothing waits, but by the delay what was taken from one that is gone tells of which window it was.
	//
	// ts stays a reading of the clock, and is not set to the end of the pause: what is reserved in it is decided now, and
	// a pause that ends early does not move ts back.
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

	// resumeSQL ends a pause, and takes back what is left of it. Without a pause it changes nothing, and without a row the
	// limit is full.
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

	// pauseClosedSQL pauses the closed rows of a limit, for those who wait in them: by the rule in each row.
	// resumeClosedSQL ends such a pause.
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

	// queueID is the number of a row's advisory lock: what lockOf says, and which table the row is in. So callers of the same
	// key in two schemas do not wait for each other.
	queueID = `pg_catalog.int8xor({of}, pg_catalog.int8shl({table}::regclass::oid::bigint, 16))`
)

// statements are the texts for one schema.
type statements struct {
	prefix string

	bucket, window              texts
	charge, settle, reset, look string
	lookShards, lookSpread      string
	head, put                   string
	pauseClosed, resumeClosed   string
	resetKey, resetKeyHere      string
	page, lockKey, countKey     string // see prune_portable.go
	deleteRows, pageSlots       string
	deleteSlot, pageSettled     string
	deleteSettled               string
	twoPhase, twoPhaseIf        string // see two_phase.go
	prune, pruneSlots, lines    string
	pruneSettled                string
}

// texts are those that differ between the kinds of rules.
type texts struct {
	take, takeWithin, takeOrFail, takeWithinOrFail string
	takeOwn, takeShard, takeShardWithin            string
	give, pause, resume                            string
}

// class is the first number of the advisory locks: "Weir". The second is a hash of the limit and key plus the shard, with
// a hash of the table that the row is in: so callers of the same key in two schemas do not deny each other.
const class = 0x57656972

func newStatements(schema string) statements {
	s := statements{}
	if schema != "" {
		s.prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	// What is replaced by one of these may hold others.
	replace := func(text string, pairs ...string) string {
		for i := 0; i < len(pairs); i += 2 {
			text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
		}
		return text
	}
	const now = "coalesce($8::timestamptz, statement_timestamp())" // the same wherever it stands in a statement
	text := func(sql, refill, delay, unused string) string {
		for _, fresh := range []string{"$4::float8 - $7::float8", "$7::float8", "$10::float8"} {
			sql = replace(sql, "{absent "+fresh+"}", absent, "{new}", fresh)
		}
		between := func(from, to string) string { return strings.NewReplacer("{from}", from, "{to}", to).Replace(delay) }
		return strings.NewReplacer("{schema}", s.prefix, "{unless}", unpaused, "{refill}", refill, "{class}", strconv.Itoa(class),
			"{here}", "pg_catalog.hashoid("+s.table()+"::regclass::oid)",
			"{refilled}", refilled, "{unused}", unused, "{given}", strings.ReplaceAll(given, "{unused}", unused),
			"{added}", between("greatest(b.ts, b.paused_until, excluded.ts)", "excluded.paused_until"),
			"{fresh}", between(now, now+" + $10::bigint::float8 * interval '1 microsecond'"), "{now}", now,
			"{left}", between("greatest(b.ts, excluded.ts)", "b.paused_until")).Replace(sql)
	}
	of := func(refill, delay, unused, comes string) texts {
		same := func(sql string) string { return text(sql, refill, delay, unused) }
		ofShard := func(sql string) string {
			return strings.NewReplacer("$5::float8", "excluded.rate", "least($4", "least(excluded.capacity", "$12::float8", "$14::float8").Replace(sql)
		}
		shard := func(sql string) string { return text(sql, ofShard(refill), delay, unused) }
		within := func(sql, in string) string {
			return replace(sql, "{unless}", in, "{comes}", comes, "{paused}", paused)
		}
		return texts{
			take: same(takeSQL), takeWithin: same(within(takeSQL, inTime)),
			takeOrFail: orFail(same(takeSQL)), takeWithinOrFail: orFail(same(within(takeSQL, inTime))),
			takeOwn: same(takeOwnSQL), takeShard: shard(takeShardSQL),
			takeShardWithin: shard(replace(takeShardSQL, "{unless}", ofShard(within("{unless}", inTime)))),
			give:            same(giveSQL), pause: same(pauseSQL), resume: same(resumeSQL),
		}
	}
	s.bucket = of(bucketRefill, bucketDelay, bucketUnused, bucketComes)
	s.window = of(windowRefill, windowDelay, strings.ReplaceAll(windowUnused, "{later}", windowsLater), windowComes)
	one := func(sql string) string { return text(sql, "", "", "") }
	s.charge, s.settle, s.reset, s.head, s.put = one(chargeSQL), one(settleSQL), one(resetSQL), one(headSQL), one(putSQL)
	s.lines = one(linesSQL)
	rowDelay := "CASE WHEN b.origin IS NULL THEN " + bucketDelay + " ELSE " +
		strings.NewReplacer("$6::float8", "b.period::float8", "$6", "b.period", "$9::timestamptz", "b.origin").Replace(windowDelay) + " END"
	delay := func(from, to string) string { return strings.NewReplacer("{from}", from, "{to}", to).Replace(rowDelay) }
	s.pauseClosed = one(replace(pauseClosedSQL, "{added}", delay("greatest(b.ts, b.paused_until, c.now)", "c.until")))
	s.resumeClosed = one(replace(resumeClosedSQL, "{left}", delay("greatest(b.ts, c.now)", "b.paused_until")))
	s.look, s.lookShards, s.resetKey = one(lookSQL), one(lookShardsSQL), one(resetKeySQL)
	s.lookSpread = one(lookSpreadSQL)
	s.twoPhase, s.twoPhaseIf = one(twoPhaseSQL), one(twoPhaseIfSQL)
	s.resetKeyHere = one(resetKeyHereSQL)
	idle := func(sql, within string) string {
		return one(replace(sql, "{idle}", isIdle, "{full}", isFull, "{forgotten}", isForgotten, "$within", within))
	}
	s.prune, s.pruneSlots, s.pruneSettled = idle(pruneSQL, "$6"), idle(pruneSlotsSQL, ""), one(pruneSettledSQL)
	s.page, s.lockKey, s.countKey, s.deleteRows = idle(pageSQL, "$6"), idle(lockKeySQL, "$4"), one(countKeySQL), one(deleteRowsSQL)
	s.pageSlots, s.deleteSlot = idle(pageSlotsSQL, ""), one(deleteSlotSQL)
	s.pageSettled, s.deleteSettled = one(pageSettledSQL), one(deleteSettledSQL)
	return s
}

// orFail makes a take one that fails its transaction if it is not granted. What the failure says is
// made of a column: Postgres would evaluate a constant when it plans the statement, and always fail.
func orFail(take string) string {
	set, rest, _ := strings.Cut(take, "\nWHERE ")
	where, returning, _ := strings.Cut(rest, "\nRETURNING ")
	return set + "\nWHERE CASE WHEN " + where +
		"\n\tTHEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END" +
		"\nRETURNING " + returning
}

// of are the texts for the rule of c.
func (s *statements) of(c *call) *texts {
	if c.windowed {
		return &s.window
	}
	return &s.bucket
}

// queue returns what goes between BEGIN and the statements of a transaction that queues for rows.
//
// A transaction's own lock comes too late for its snapshot, which each statement takes before it runs. So the lock belongs
// to the session at first, and a transaction that did nothing else ends. The next one has a newer snapshot: it takes the
// lock as its own, and releases that of the session. All of it goes in one flight. So the lock outlives no transaction, and
// a pooler that assigns connections to transactions does not notice, as none ends between flights.
func (s *statements) queue(locks []int64) []*statement {
	var lock, keep []string
	var args []any
	for i, n := range locks {
		id := s.queueID("$" + strconv.Itoa(i+1) + "::bigint")
		lock = append(lock, "pg_catalog.pg_advisory_lock("+id+")")
		keep = append(keep, "pg_catalog.pg_advisory_xact_lock("+id+"), pg_catalog.pg_advisory_unlock("+id+")")
		args = append(args, n)
	}
	return []*statement{
		{sql: "SELECT " + strings.Join(lock, ", "), args: args},
		{sql: "COMMIT AND CHAIN"},
		{sql: "SELECT " + strings.Join(keep, ", "), args: args},
	}
}

// unqueue is the text that rolls back and releases what the session may hold of locks. Postgres warns of those that it does
// not hold.
func (s *statements) unqueue(locks []int64) string {
	sql := "ROLLBACK"
	for _, n := range locks {
		sql += "; SELECT pg_catalog.pg_advisory_unlock(" + s.queueID(strconv.FormatInt(n, 10)) + ")"
	}
	return sql
}

func (s *statements) queueID(of string) string {
	return strings.NewReplacer("{of}", of, "{table}", s.table()).Replace(queueID)
}

// table is the name of the table of balances as a string.
func (s *statements) table() string {
	return "'" + strings.ReplaceAll(s.prefix+"weir_balance", "'", "''") + "'"
}

// statement is one text on its way to the database, with room for the row that it answers with, if it answers with one.
type statement struct {
	sql    string
	args   []any
	c      *call // whose row it is about; nil for a statement that answers with none
	writes bool  // locks that row, for which callers queue

	answer columnsOf
	found  bool
	looks  bool  // and answers with the clock
	once   *bool // the only column, of settleSQL

	whole  *call   // the limit of whose shard c is
	shards []int32 // of takeShardSQL: the candidates' rows
	row    int32   // and the one that was taken from
	lone   bool    // the candidate was the only one
	look   *look   // the columns of lookShardsSQL
}

// columnsOf is a row in answer, by its columns, and the clock where it is asked for.
type columnsOf struct {
	value  pgtype.Float8
	ts     pgtype.Timestamptz
	paused pgtype.Timestamptz
	delay  pgtype.Int8
	moved  pgtype.Float8
	at     time.Time
}

// dest is where the columns of the answer go.
func (s *statement) dest() []any {
	switch a := &s.answer; {
	case s.once != nil:
		return []any{s.once}
	case s.look != nil:
		return s.look.dest()
	case s.shards != nil:
		return []any{&a.value, &a.ts, &a.paused, &a.delay, &a.moved, &s.row}
	case s.looks:
		return []any{&a.value, &a.ts, &a.paused, &a.delay, &a.moved, &a.at}
	default:
		return []any{&a.value, &a.ts, &a.paused, &a.delay, &a.moved}
	}
}

// balance is the answer.
func (s *statement) balance() balance {
	a := &s.answer
	if !s.found || !a.value.Valid || !a.ts.Valid {
		return balance{}
	}
	b := balance{true, number(a.value.Float64), a.ts.Time.UnixMicro(), open, a.delay.Int64, a.moved.Float64}
	if a.paused.Valid {
		b.pausedUntil = min(a.paused.Time.UnixMicro(), endOfTime)
	}
	return b
}

// number is a stored balance: NaN and infinity count as full, as by SQL's least.
func number(value float64) float64 {
	if value < math.Inf(1) {
		return value
	}
	return full
}

func (c *call) originTime() any {
	if !c.windowed {
		return nil
	}
	return fromMicro(c.origin)
}

// write is a statement that writes the row of c.
func (l *Limiter) write(c *call, sql string, tokens float64, more ...any) *statement {
	a := c.args
	if a == nil {
		a = c.algebra.args(c.name)
	}
	args := make([]any, 0, 16)
	args = append(args, a.name, l.home(c), c.shard, a.capacity, a.rate, a.period, tokens, l.now(), c.originTime())
	return &statement{c: c, writes: true, sql: sql, args: append(args, more...)}
}

// put writes the row of c, whatever stands there.
func (l *Limiter) put(c *call, b balance) *statement {
	var paused any
	if b.pausedUntil != open {
		paused = fromMicro(b.pausedUntil)
	}
	s := l.write(c, l.sql.put, b.value, paused, b.delay, b.moved)
	if b.ts != 0 {
		s.args[7] = fromMicro(b.ts)
	}
	return s
}

// takeOrFailOf is takeOf, for a statement that fails its transaction if it is denied.
func (l *Limiter) takeOrFailOf(c *call) *statement {
	s := l.takeOf(c)
	if s.sql = l.sql.of(c).takeOrFail; c.within > 0 {
		s.sql = l.sql.of(c).takeWithinOrFail
	}
	return s
}

func (l *Limiter) takeOf(c *call) *statement {
	if c.within > 0 {
		return l.write(c, l.sql.of(c).takeWithin, c.count, c.least(), float64(c.within), c.credited())
	}
	return l.write(c, l.sql.of(c).take, c.count, c.least(), c.pausable())
}

// giveOf gives back what c took, but for what was used of it.
func (l *Limiter) giveOf(c *call, used float64, move bool) *statement {
	sql := l.sql.of(c).give
	if !c.windowed {
		return l.write(c, sql, c.count, float64(full), used, move)
	}
	return l.write(c, sql, c.count, float64(full), used, move, fromMicro(c.taken), c.owed, c.delay, c.moved)
}

// undoOf gives back all that c took. Tokens that were there at once are not those of somebody who waits: they have been
// taken ahead of all who do.
func (l *Limiter) undoOf(c *call) *statement { return l.giveOf(c, 0, c.atOnce()) }

func (l *Limiter) chargeOf(c *call, tokens float64) *statement {
	return l.write(c, l.sql.charge, tokens)
}

func (l *Limiter) settleOf(r *Reservation) *statement {
	return &statement{sql: l.sql.settle, args: []any{r.ID.String(), r.until(), l.now(), l.settledAt(r)}, once: new(bool)}
}

func (l *Limiter) resetOf(c *call) *statement { return l.write(c, l.sql.reset, full) }

func (l *Limiter) pauseOf(c *call, d int64) *statement { return l.write(c, l.sql.of(c).pause, full, d) }

// closedOf is pauseOf or resumeOf for the rows of former layouts.
func (l *Limiter) closedOf(c *call, sql string, more ...any) (all []*statement) {
	for _, key := range l.homes(c.key) {
		all = append(all, &statement{c: c, sql: sql, args: append([]any{c.name, key, l.now()}, more...), once: new(bool)})
	}
	return all
}

func (l *Limiter) resumeOf(c *call) *statement { return l.write(c, l.sql.of(c).resume, full) }

func (l *Limiter) lookOf(c *call) *statement {
	return &statement{c: c, sql: l.sql.look, args: []any{c.name, c.key, c.shard, l.now()}, looks: true}
}

// now is the set clock, or nil for the database's.
func (l *Limiter) now() any {
	if l.clock == nil {
		return nil
	}
	return l.clock()
}
