-- The statements of this package, as they are sent to the schema "public".
-- Made by go test -run GoldenFile -update

-- acquire: takes a slot, or none if all are held
WITH live AS MATERIALIZED (
	SELECT s.slot FROM "public".weir_slot AS s
	WHERE s.name = $2::text AND s.key = $3::text AND s.until > coalesce($1::timestamptz, statement_timestamp())
), free AS (
	SELECT i FROM generate_series(0, $4::integer - 1) AS i
	WHERE (SELECT count(*) FROM live) < $4::integer AND i NOT IN (SELECT slot FROM live)
		AND ($5::boolean OR NOT EXISTS (SELECT FROM live WHERE slot >= $4::integer))
	ORDER BY i < $6::integer, i LIMIT 1
), got AS (
	INSERT INTO "public".weir_slot AS s (name, key, slot, holder, until, token)
	SELECT $2::text, $3::text, free.i, $7::text::uuid,
		coalesce($1::timestamptz, statement_timestamp()) + $8::bigint::float8 * interval '1 microsecond',
		round(date_part('epoch', coalesce($1::timestamptz, statement_timestamp())) * 1e6::float8)::bigint FROM free
	ON CONFLICT (name, key, slot) DO UPDATE SET
		holder = excluded.holder, until = excluded.until, token = greatest(s.token + 1, excluded.token)
	WHERE round(date_part('epoch', excluded.until - s.until) * 1e6::float8) >= $8::bigint::float8
	RETURNING s.slot, s.token
)
SELECT got.slot, got.token, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN got ON true;

-- acquireBound: acquire in a transaction of its own, which waits for no row for long
WITH in_line AS MATERIALIZED (SELECT set_config('lock_timeout', '250', true)), live AS MATERIALIZED (
	SELECT s.slot FROM "public".weir_slot AS s
	WHERE s.name = $2::text AND s.key = $3::text AND s.until > coalesce($1::timestamptz, statement_timestamp())
), free AS (
	SELECT i FROM generate_series(0, $4::integer - 1) AS i, in_line
	WHERE (SELECT count(*) FROM live) < $4::integer AND i NOT IN (SELECT slot FROM live)
		AND ($5::boolean OR NOT EXISTS (SELECT FROM live WHERE slot >= $4::integer))
	ORDER BY i < $6::integer, i LIMIT 1
), got AS (
	INSERT INTO "public".weir_slot AS s (name, key, slot, holder, until, token)
	SELECT $2::text, $3::text, free.i, $7::text::uuid,
		coalesce($1::timestamptz, statement_timestamp()) + $8::bigint::float8 * interval '1 microsecond',
		round(date_part('epoch', coalesce($1::timestamptz, statement_timestamp())) * 1e6::float8)::bigint FROM free
	ON CONFLICT (name, key, slot) DO UPDATE SET
		holder = excluded.holder, until = excluded.until, token = greatest(s.token + 1, excluded.token)
	WHERE round(date_part('epoch', excluded.until - s.until) * 1e6::float8) >= $8::bigint::float8
	RETURNING s.slot, s.token
)
SELECT got.slot, got.token, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN got ON true;

-- claim: takes over a slot that was given to a job
WITH clock AS MATERIALIZED (
	SELECT c.now, c.now + $6::bigint::float8 * interval '1 microsecond' AS until,
		round(date_part('epoch', c.now) * 1e6::float8)::bigint AS token
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
)
UPDATE "public".weir_slot AS s SET holder = $4::text::uuid, until = clock.until, token = greatest(s.token + 1, clock.token)
FROM clock WHERE s.name = $2::text AND s.key = $3::text AND s.holder = $5::text::uuid AND s.until > clock.now
RETURNING s.slot, s.token;

-- count.one: counts those of one key
SELECT s.name, s.key, count(*)::integer FROM "public".weir_slot AS s, unnest($2::text[], $3::text[]) AS w (name, key)
WHERE s.name = w.name AND s.key = w.key AND s.until > coalesce($1::timestamptz, clock_timestamp()) AND s.key = $4::text
GROUP BY s.name, s.key;

-- count.several: counts the slots of several keys that are held
SELECT s.name, s.key, count(*)::integer FROM "public".weir_slot AS s, unnest($2::text[], $3::text[]) AS w (name, key)
WHERE s.name = w.name AND s.key = w.key AND s.until > coalesce($1::timestamptz, clock_timestamp())
GROUP BY s.name, s.key;

-- find: on Citus, the first half of acquire: finds a number that is free
WITH live AS MATERIALIZED (
	SELECT s.slot FROM "public".weir_slot AS s
	WHERE s.name = $2::text AND s.key = $3::text AND s.until > coalesce($1::timestamptz, statement_timestamp())
), free AS (
	SELECT i FROM generate_series(0, $4::integer - 1) AS i
	WHERE (SELECT count(*) FROM live) < $4::integer AND i NOT IN (SELECT slot FROM live)
		AND ($5::boolean OR NOT EXISTS (SELECT FROM live WHERE slot >= $4::integer))
	ORDER BY i < $6::integer, i LIMIT 1
)
SELECT free.i, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN free ON true;

-- left: makes those take turns that count slots left by a larger n
SELECT 1 FROM "public".weir_slot WHERE name = $1::text AND key = $2::text AND slot >= $3::integer ORDER BY slot LIMIT 1 FOR UPDATE;

-- release.one: frees slots of one key
UPDATE "public".weir_slot AS s SET until = 'epoch' FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[]) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid AND s.key = $5::text;

-- release.several: frees slots of several keys
UPDATE "public".weir_slot AS s SET until = 'epoch' FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[]) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid;

-- renew.one: renews slots of one key
WITH clock AS MATERIALIZED (
	SELECT c.now, c.now + $2::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
)
UPDATE "public".weir_slot AS s SET until = clock.until
FROM clock, unnest($3::text[], $4::text[], $5::integer[], $6::text[]) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid AND s.key = $7::text AND s.until > clock.now
RETURNING s.holder::text, true;

-- renew.several: renews slots of several keys
WITH clock AS MATERIALIZED (
	SELECT c.now, c.now + $2::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
)
UPDATE "public".weir_slot AS s SET until = clock.until
FROM clock, unnest($3::text[], $4::text[], $5::integer[], $6::text[]) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid AND s.until > clock.now
RETURNING s.holder::text, true;

-- renewFree: renews slots, except those whose rows are locked
WITH clock AS MATERIALIZED (
	SELECT c.now, c.now + $2::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
), held AS MATERIALIZED (
	SELECT s.holder FROM clock, "public".weir_slot AS s, unnest($3::text[], $4::text[], $5::integer[], $6::text[]) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid AND s.until > clock.now
), free AS MATERIALIZED (
	SELECT s.name, s.key, s.slot FROM "public".weir_slot AS s, unnest($3::text[], $4::text[], $5::integer[], $6::text[]) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid FOR UPDATE OF s SKIP LOCKED
), renewed AS (
	UPDATE "public".weir_slot AS s SET until = clock.until
	FROM clock, free WHERE s.name = free.name AND s.key = free.key AND s.slot = free.slot AND s.until > clock.now
	RETURNING s.holder
)
SELECT holder::text, holder IN (SELECT holder FROM renewed) FROM held;

-- take: on Citus, its second half: takes that number, if nobody else has it
INSERT INTO "public".weir_slot AS s (name, key, slot, holder, until, token)
VALUES ($2::text, $3::text, $4::integer, $5::text::uuid,
	$1::timestamptz + $6::bigint::float8 * interval '1 microsecond',
	round(date_part('epoch', $1::timestamptz) * 1e6::float8)::bigint)
ON CONFLICT (name, key, slot) DO UPDATE SET
		holder = excluded.holder, until = excluded.until, token = greatest(s.token + 1, excluded.token)
	WHERE round(date_part('epoch', excluded.until - s.until) * 1e6::float8) >= $6::bigint::float8
	RETURNING s.slot, s.token;

-- tidy: frees the slot of a call whose answer was lost
UPDATE "public".weir_slot SET until = 'epoch' WHERE name = $1::text AND key = $2::text AND holder = $3::text::uuid;
