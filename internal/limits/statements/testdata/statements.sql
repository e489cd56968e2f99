-- The statements of this package, as they are sent to the schema "public".
-- Made by go test -run GoldenFile -update

-- bucket.give: gives back what is left of a take, as if it had been smaller
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $10::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least(b.capacity, b.value + ($7::float8 - $11::float8))),
	moved = CASE WHEN NOT $12::boolean OR b.value >= 0::float8 OR b.value = '-Infinity' THEN b.moved
		ELSE coalesce(b.moved, 0) + (-b.value - greatest(0, -greatest(b.value, least(b.capacity, b.value + ($7::float8 - $11::float8))))) END
WHERE ($7::float8 - $11::float8) > 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.giveShard: give, of a shard: takes prefer others until the transaction ends
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $10::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least(b.capacity, b.value + ($7::float8 - $11::float8))),
	moved = CASE WHEN NOT $12::boolean OR b.value >= 0::float8 OR b.value = '-Infinity' THEN b.moved
		ELSE coalesce(b.moved, 0) + (-b.value - greatest(0, -greatest(b.value, least(b.capacity, b.value + ($7::float8 - $11::float8))))) END
WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($13::integer, pg_catalog.hashoid('"public".weir_balance'::regclass::oid))) IS NOT NULL AND ($7::float8 - $11::float8) > 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.pause: closes a balance for a while
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until, delay)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $7::float8 END, coalesce($8::timestamptz, statement_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	coalesce($8::timestamptz, statement_timestamp()) + $10::bigint::float8 * interval '1 microsecond', greatest(0, round(date_part('epoch', coalesce($8::timestamptz, statement_timestamp()) + $10::bigint::float8 * interval '1 microsecond' - coalesce($11::timestamptz, coalesce($8::timestamptz, statement_timestamp()))) * 1e6::float8))::bigint)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END)),
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.value = '-Infinity' THEN b.paused_until
		WHEN b.paused_until > $11::timestamptz
		THEN greatest(to_timestamp((round(date_part('epoch', b.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) + excluded.delay::float8) / 1e6::float8),
			to_timestamp((round(date_part('epoch', excluded.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) + 1::float8) / 1e6::float8))
		ELSE greatest(b.paused_until, excluded.paused_until) END,
	delay = coalesce(b.delay, 0) + CASE WHEN b.value = '-Infinity' THEN 0
		WHEN b.paused_until > $11::timestamptz THEN excluded.delay
		ELSE greatest(0, round(date_part('epoch', excluded.paused_until - greatest(b.ts, b.paused_until, excluded.ts)) * 1e6::float8))::bigint END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.resume: ends a pause early
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, delay)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	greatest(0, round(date_part('epoch', $10::timestamptz - $11::timestamptz) * 1e6::float8))::bigint)
ON CONFLICT (name, key, shard) DO UPDATE SET
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.value = '-Infinity' THEN b.paused_until
		WHEN b.paused_until > $10::timestamptz
		THEN to_timestamp((round(date_part('epoch', b.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) - excluded.delay::float8) / 1e6::float8) END,
	delay = coalesce(b.delay, 0) - CASE WHEN b.value = '-Infinity' THEN 0
		WHEN b.paused_until > $10::timestamptz THEN excluded.delay
		ELSE greatest(0, round(date_part('epoch', b.paused_until - greatest(b.ts, excluded.ts)) * 1e6::float8))::bigint END
WHERE b.paused_until > excluded.ts OR b.value = '-Infinity'
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.take: grants a call for one row, or answers with no row
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.takeOrFail: take, for SendBatch: fails the transaction in place of no row
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE CASE WHEN least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
	THEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.takeOwn: take, of a shard that nobody else is expected to hold: no row if somebody does
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, $3::integer, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz
WHERE ($13::integer IS NULL OR pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($13, pg_catalog.hashoid('"public".weir_balance'::regclass::oid))))
	AND pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($12::integer, pg_catalog.hashoid('"public".weir_balance'::regclass::oid)))
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.takeParts: takes equal parts of a call from several shards, if no other transaction holds them
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
WITH c AS (SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor(pg_catalog.int4xor($12::integer, u.shard), pg_catalog.hashoid('"public".weir_balance'::regclass::oid)))
	LIMIT $13::bigint)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz
FROM c WHERE (SELECT count(*) FROM c) = $13 ORDER BY c.shard
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved, b.shard;

-- bucket.takeShard: take, of the first of several shards that no other transaction holds
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz
FROM ((SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor(pg_catalog.int4xor($12::integer, u.shard), pg_catalog.hashoid('"public".weir_balance'::regclass::oid))))
	UNION ALL (SELECT ($3::integer[])[1] WHERE $13::boolean)
	LIMIT 1) c
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved, b.shard;

-- bucket.takeShardWithin: takeWithin, of the first of several shards
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz
FROM ((SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor(pg_catalog.int4xor($12::integer, u.shard), pg_catalog.hashoid('"public".weir_balance'::regclass::oid))))
	UNION ALL (SELECT ($3::integer[])[1] WHERE $13::boolean)
	LIMIT 1) c
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8) <= $11::float8
	AND (least(excluded.capacity, b.value + excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8) + $17::float8 + excluded.rate * greatest(0, $11::float8 - round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8)) / $6::float8 >= 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved, b.shard;

-- bucket.takeWithin: grants it for later, in a pause too, if it may run in time
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8) <= $11::float8
	AND (least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8) + $12::float8 + $5::float8 * greatest(0, $11::float8 - round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8)) / $6::float8 >= 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- bucket.takeWithinOrFail: takeWithin, for SendBatch
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE CASE WHEN least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8 >= $10::float8
	AND round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8) <= $11::float8
	AND (least($4::float8, b.value + $5::float8 * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / $6::float8) - $7::float8) + $12::float8 + $5::float8 * greatest(0, $11::float8 - round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8)) / $6::float8 >= 0::float8
	THEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- charge: takes tokens even if that leaves a debt, ahead of work that waits
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	moved = CASE WHEN b.value = '-Infinity' THEN coalesce(b.moved, 0) - least(0, $7::float8)
		ELSE coalesce(b.moved, 0) - (greatest(0, $7::float8 - least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END)) - greatest(0, -least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END))) END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- chargeShard: charge, of a shard: takes prefer others until the transaction ends
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	moved = CASE WHEN b.value = '-Infinity' THEN coalesce(b.moved, 0) - least(0, $7::float8)
		ELSE coalesce(b.moved, 0) - (greatest(0, $7::float8 - least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END)) - greatest(0, -least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END))) END
WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($10::integer, pg_catalog.hashoid('"public".weir_balance'::regclass::oid))) IS NOT NULL
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- closedLine: locks rows of a former layout, and reads when the pause of their limit ends
WITH held AS MATERIALIZED (
	SELECT b.shard, coalesce(b.paused_until, timestamptz '1970-01-01 00:00:00+00') AS until, b.ts
	FROM "public".weir_balance b
	WHERE b.name = $1::text AND b.key = $2::text AND b.shard >= 0 AND b.value = '-Infinity'
	ORDER BY b.shard FOR NO KEY UPDATE
)
SELECT max(held.until) FILTER (WHERE held.shard = 0), coalesce($3::timestamptz, clock_timestamp()),
	max(held.ts) FILTER (WHERE held.shard = 0)
FROM held;

-- countKey: counts them
SELECT count(*) FROM "public".weir_balance WHERE name = $1::text AND key = $2::text;

-- deleteRows: deletes some of them
DELETE FROM "public".weir_balance WHERE name = $1::text AND key = $2::text AND shard = ANY ($3::integer[]);

-- deleteSettled: deletes one
DELETE FROM "public".weir_settled WHERE id = $1::uuid AND key = $2::text;

-- deleteSlot: deletes one
DELETE FROM "public".weir_slot
WHERE name = $1::text AND key = $2::text AND slot = $3::integer AND until <= $4::timestamptz;

-- head: locks the row that says how many shards a key has
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, -1, 1, coalesce($3::timestamptz, clock_timestamp()), 0, 0, 1, NULL)
ON CONFLICT (name, key, shard) DO UPDATE SET
	ts = greatest(b.ts, excluded.ts)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- inRange.lock: locks them, skipping those that others hold
SELECT u.nr
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
JOIN "public".weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
WHERE b.key = ANY ($2::text[])
FOR NO KEY UPDATE OF b SKIP LOCKED;

-- inRange.look: reads them
SELECT u.nr, b.value, b.ts, b.paused_until, b.delay, b.moved, coalesce($3::timestamptz, clock_timestamp())
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
LEFT JOIN "public".weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0 AND b.key = ANY ($2::text[]);

-- inRange.take: many.take for rows that Citus keeps in one table, as those that follow
UPDATE "public".weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.name, u.key, u.capacity, u.rate, u.period, u.origin, greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE least(u.capacity, b.value + CASE WHEN u.origin IS NULL
		THEN u.rate * greatest(0, round(date_part('epoch', u.now - greatest(b.ts, b.paused_until)) * 1e6::float8)) / u.period::float8
		ELSE u.rate * greatest(0,
		floor(round(date_part('epoch', u.now - u.origin) * 1e6::float8) / u.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - u.origin) * 1e6::float8) / u.period::float8)) END) - u.count END AS left
	FROM (SELECT u.*, greatest($8::timestamptz, least(statement_timestamp(),
				coalesce($8::timestamptz, 'infinity'::timestamptz))) AS now
		FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
			WITH ORDINALITY AS u (name, key, capacity, rate, period, origin, count, nr)) u JOIN "public".weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
	WHERE b.key = ANY ($2::text[])
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.name = s.name AND b.key = s.key AND b.shard = 0 AND b.key = ANY ($2::text[]) AND s.left >= 0::float8
RETURNING s.nr, b.value, b.ts, b.paused_until, b.delay, b.moved;

-- lines: reads the balances for which work waits
SELECT 0::bigint, clock_timestamp(), NULL::timestamptz, NULL::bigint, NULL::float8
UNION ALL (SELECT p.nr, max(b.ts), max(b.paused_until), max(b.delay), sum(b.moved)
	FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) WITH ORDINALITY AS p (name, key, first, last, nr)
	JOIN "public".weir_balance b ON b.name = p.name AND b.key = p.key AND b.shard BETWEEN p.first AND p.last
	WHERE b.key = ANY ($2::text[])
	GROUP BY p.nr);

-- lockKey: locks those of a key
SELECT b.shard, b.value = '-Infinity', (b.paused_until IS NULL OR b.paused_until <= c.clock)
		AND CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', c.clock - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END >= b.capacity
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8) > $4::bigint::float8)
FROM "public".weir_balance b CROSS JOIN (SELECT coalesce($3::timestamptz, clock_timestamp()) AS clock) c
WHERE b.name = $1::text AND b.key = $2::text FOR UPDATE OF b SKIP LOCKED;

-- look: reads a balance: every denial is based on it
SELECT b.value, b.ts, b.paused_until, b.delay, b.moved, coalesce($4::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one LEFT JOIN "public".weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = $3::integer;

-- lookClosed: reads which layouts a limit has had
SELECT 1::float8, pg_catalog.array_agg(shard), pg_catalog.array_agg(0::float8),
	pg_catalog.array_agg(0::bigint), pg_catalog.array_agg(0::bigint), pg_catalog.array_agg(0::bigint),
	pg_catalog.array_agg(0::float8), coalesce($3::timestamptz, clock_timestamp())
FROM "public".weir_balance WHERE name = $1::text AND key = ANY ($2::text[]) AND shard >= 0 AND value = '-Infinity';

-- lookShards: reads the layout of a key and all of its shards
SELECT h.layout, b.shards, b.balances, b.times, b.pauses, b.delays, b.moves, coalesce($3::timestamptz, clock_timestamp())
FROM (SELECT l.layout, (l.layout::integer >> 11 << 20) + ((l.layout::integer & 2047) * ((l.layout::integer & 2047) - 1) >> 1) AS first,
		(l.layout::integer & 2047) AS n
	FROM (SELECT coalesce(max(value), 1::float8) AS layout FROM "public".weir_balance
		WHERE name = $1::text AND key = $2::text AND shard = -1) l) h
LEFT JOIN LATERAL (SELECT pg_catalog.array_agg(shard) AS shards, pg_catalog.array_agg(value) AS balances,
		pg_catalog.array_agg(round(date_part('epoch', ts) * 1e6::float8)::bigint) AS times,
		pg_catalog.array_agg(coalesce(round(date_part('epoch', paused_until) * 1e6::float8)::bigint, -9223372036854775808)) AS pauses,
		pg_catalog.array_agg(coalesce(delay, 0)) AS delays, pg_catalog.array_agg(coalesce(moved, 0)) AS moves
	FROM "public".weir_balance WHERE name = $1::text AND key = $2::text AND shard BETWEEN h.first AND h.first + h.n - 1) b ON true;

-- lookSpread: lookShards of a limit without keys, on Citus
WITH l AS MATERIALIZED (
	SELECT value FROM "public".weir_balance WHERE name = $1::text AND key = $2::text AND shard = -1
), r AS MATERIALIZED (
	SELECT shard, value, ts, paused_until, delay, moved FROM "public".weir_balance
	WHERE name = $1::text AND key = ANY ($4::text[]) AND shard >= 0
)
SELECT h.layout, b.shards, b.balances, b.times, b.pauses, b.delays, b.moves, coalesce($3::timestamptz, clock_timestamp())
FROM (SELECT l.layout, (l.layout::integer >> 11 << 20) + ((l.layout::integer & 2047) * ((l.layout::integer & 2047) - 1) >> 1) AS first,
		(l.layout::integer & 2047) AS n
	FROM (SELECT coalesce(max(value), 1::float8) AS layout FROM l) l) h
LEFT JOIN LATERAL (SELECT pg_catalog.array_agg(shard) AS shards, pg_catalog.array_agg(value) AS balances,
		pg_catalog.array_agg(round(date_part('epoch', ts) * 1e6::float8)::bigint) AS times,
		pg_catalog.array_agg(coalesce(round(date_part('epoch', paused_until) * 1e6::float8)::bigint, -9223372036854775808)) AS pauses,
		pg_catalog.array_agg(coalesce(delay, 0)) AS delays, pg_catalog.array_agg(coalesce(moved, 0)) AS moves
	FROM r WHERE shard BETWEEN h.first AND h.first + h.n - 1) b ON true;

-- many.lock: locks many rows, skipping those that others hold
SELECT u.nr
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
JOIN "public".weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
FOR NO KEY UPDATE OF b SKIP LOCKED;

-- many.look: reads many balances
SELECT u.nr, b.value, b.ts, b.paused_until, b.delay, b.moved, coalesce($3::timestamptz, clock_timestamp())
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
LEFT JOIN "public".weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0;

-- many.make: many.take that also inserts the rows that do not exist
WITH s AS MATERIALIZED (
	SELECT u.*, b.at, greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE least(u.capacity, b.value + CASE WHEN u.origin IS NULL
		THEN u.rate * greatest(0, round(date_part('epoch', u.now - greatest(b.ts, b.paused_until)) * 1e6::float8)) / u.period::float8
		ELSE u.rate * greatest(0,
		floor(round(date_part('epoch', u.now - u.origin) * 1e6::float8) / u.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - u.origin) * 1e6::float8) / u.period::float8)) END) - u.count END AS left, CASE WHEN b.at IS NULL THEN NOT EXISTS (
		SELECT FROM "public".weir_balance b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0) END AS new
	FROM (SELECT u.*, coalesce($8::timestamptz, clock_timestamp()) AS now
		FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
			WITH ORDINALITY AS u (name, key, capacity, rate, period, origin, count, nr)
		LIMIT pg_catalog.cardinality($1::text[])) u LEFT JOIN LATERAL (SELECT b.ctid AS at, b.value, b.ts, b.paused_until
		FROM "public".weir_balance b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0
		FOR NO KEY UPDATE SKIP LOCKED) b ON true
), made AS (
	INSERT INTO "public".weir_balance (name, key, shard, value, ts, capacity, rate, period, origin)
	SELECT s.name, s.key, 0, s.capacity - s.count, s.now, s.capacity, s.rate, s.period, s.origin FROM s WHERE s.new
), taken AS (
	UPDATE "public".weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
	FROM s WHERE b.ctid = s.at AND s.left >= 0::float8
	RETURNING s.nr, b.value, b.ts, b.paused_until, b.delay, b.moved
)
SELECT nr, value, ts, paused_until, delay, moved FROM taken
UNION ALL SELECT -s.nr, s.capacity - s.count, s.now, NULL, NULL, NULL FROM s WHERE s.new;

-- many.new: inserts the balances of rows that did not exist
INSERT INTO "public".weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
SELECT u.*, 0 FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[],
	$7::float8[], $8::timestamptz[], $9::timestamptz[]) AS u;

-- many.put: writes the new balances of rows that are locked
INSERT INTO "public".weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
SELECT u.*, 0 FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[],
	$7::float8[], $8::timestamptz[], $9::timestamptz[]) AS u
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts, paused_until = excluded.paused_until,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin;

-- many.take: grants calls of many rows, skipping those that others have locked
UPDATE "public".weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, b.ctid AS at, greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE least(u.capacity, b.value + CASE WHEN u.origin IS NULL
		THEN u.rate * greatest(0, round(date_part('epoch', u.now - greatest(b.ts, b.paused_until)) * 1e6::float8)) / u.period::float8
		ELSE u.rate * greatest(0,
		floor(round(date_part('epoch', u.now - u.origin) * 1e6::float8) / u.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - u.origin) * 1e6::float8) / u.period::float8)) END) - u.count END AS left
	FROM (SELECT u.*, coalesce($8::timestamptz, clock_timestamp()) AS now
		FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
			WITH ORDINALITY AS u (name, key, capacity, rate, period, origin, count, nr)
		LIMIT pg_catalog.cardinality($1::text[])) u JOIN "public".weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.ctid = s.at AND s.left >= 0::float8
RETURNING s.nr, b.value, b.ts, b.paused_until, b.delay, b.moved;

-- many.wait: waits for one row that another transaction holds
SELECT 1::bigint FROM "public".weir_balance b
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 FOR NO KEY UPDATE;

-- page: reads a page of balances, and which are idle; Portable, like those that follow
SELECT b.name, b.key, b.shard, (b.paused_until IS NULL OR b.paused_until <= c.clock)
		AND CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', c.clock - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END >= b.capacity
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8) > $6::bigint::float8)
FROM "public".weir_balance b CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
WHERE (b.name, b.key, b.shard) > ($1::text, $2::text, $3::integer)
ORDER BY b.name, b.key, b.shard LIMIT $4::bigint;

-- pageSettled: reads a page of settlements, and which are over
SELECT id, key, until <= coalesce($3::timestamptz, statement_timestamp())
FROM "public".weir_settled WHERE id > $1::uuid ORDER BY id LIMIT $2::bigint;

-- pageSlots: reads a page of slots, and which are forgotten
SELECT s.name, s.key, s.slot, s.until <= c.clock AND s.token <= round(date_part('epoch', c.clock) * 1e6::float8)::bigint - 3600000000, c.clock
FROM "public".weir_slot s CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
WHERE (s.name, s.key, s.slot) > ($1::text, $2::text, $3::integer)
ORDER BY s.name, s.key, s.slot LIMIT $4::bigint;

-- pauseClosed: pauses rows of a former layout, in which work waits
WITH c AS MATERIALIZED (
	SELECT $3::timestamptz AS now, $4::timestamptz AS line,
		$3::timestamptz + $5::bigint::float8 * interval '1 microsecond' AS until
), held AS MATERIALIZED (
	SELECT b.shard, CASE WHEN b.origin IS NULL
		THEN greatest(0, round(date_part('epoch', $3::timestamptz + $5::bigint::float8 * interval '1 microsecond' - $4::timestamptz) * 1e6::float8))::bigint
		ELSE b.period * greatest(0,
		floor(round(date_part('epoch', $3::timestamptz + $5::bigint::float8 * interval '1 microsecond' - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', $4::timestamptz - b.origin) * 1e6::float8) / b.period::float8))::bigint END AS delay
	FROM "public".weir_balance b
	WHERE b.name = $1::text AND b.key = $2::text AND b.shard >= 0 AND b.value = '-Infinity'
	ORDER BY b.shard FOR NO KEY UPDATE
)
UPDATE "public".weir_balance b SET
	ts = greatest(b.ts, c.now),
	paused_until = CASE WHEN b.paused_until > c.line
		THEN greatest(to_timestamp((round(date_part('epoch', b.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) + held.delay::float8) / 1e6::float8),
			to_timestamp((round(date_part('epoch', c.until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) + 1::float8) / 1e6::float8))
		ELSE greatest(b.paused_until, c.until) END,
	delay = coalesce(b.delay, 0) + CASE WHEN b.paused_until > c.line
		THEN held.delay
		ELSE CASE WHEN b.origin IS NULL
		THEN greatest(0, round(date_part('epoch', c.until - greatest(b.ts, b.paused_until, c.now)) * 1e6::float8))::bigint
		ELSE b.period * greatest(0,
		floor(round(date_part('epoch', c.until - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until, c.now) - b.origin) * 1e6::float8) / b.period::float8))::bigint END END
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard
RETURNING true;

-- portable many.lock: locks many rows, skipping those that others hold
SELECT 1::bigint FROM "public".weir_balance b
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 FOR NO KEY UPDATE SKIP LOCKED;

-- portable many.look: reads many balances
SELECT 1::bigint, b.value, b.ts, b.paused_until, b.delay, b.moved, coalesce($3::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one
LEFT JOIN "public".weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0;

-- portable many.new: inserts the balances of rows that did not exist
INSERT INTO "public".weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
VALUES ($1::text, $2::text, $3::float8, $4::float8, $5::bigint, $6::timestamptz,
	$7::float8, $8::timestamptz, $9::timestamptz, 0);

-- portable many.put: writes the new balances of rows that are locked
INSERT INTO "public".weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
VALUES ($1::text, $2::text, $3::float8, $4::float8, $5::bigint, $6::timestamptz,
	$7::float8, $8::timestamptz, $9::timestamptz, 0)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts, paused_until = excluded.paused_until,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin;

-- portable many.take: grants calls of many rows, skipping those that others have locked
UPDATE "public".weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE least(u.capacity, b.value + CASE WHEN u.origin IS NULL
		THEN u.rate * greatest(0, round(date_part('epoch', u.now - greatest(b.ts, b.paused_until)) * 1e6::float8)) / u.period::float8
		ELSE u.rate * greatest(0,
		floor(round(date_part('epoch', u.now - u.origin) * 1e6::float8) / u.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - u.origin) * 1e6::float8) / u.period::float8)) END) - u.count END AS left
	FROM (SELECT 1::bigint AS nr, $3::float8 AS capacity, $4::float8 AS rate, $5::bigint AS period,
			$6::timestamptz AS origin, $7::float8 AS count,
			greatest($8::timestamptz, least(statement_timestamp(),
				coalesce($8::timestamptz, 'infinity'::timestamptz))) AS now) u
		JOIN "public".weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 AND s.left >= 0::float8
RETURNING s.nr, b.value, b.ts, b.paused_until, b.delay, b.moved;

-- portable many.wait: waits for one row that another transaction holds
SELECT 1::bigint FROM "public".weir_balance b
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 FOR NO KEY UPDATE;

-- prune: deletes a page of idle balances
WITH page AS MATERIALIZED (
	SELECT name, key, shard FROM "public".weir_balance WHERE (name, key, shard) > ($1::text, $2::text, $3::integer)
	ORDER BY name, key, shard LIMIT $4::bigint
), c AS MATERIALIZED (
	SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock
), head AS MATERIALIZED (
	SELECT h.name, h.key, h.value FROM page JOIN "public".weir_balance h USING (name, key, shard) CROSS JOIN c
	WHERE h.shard = -1 AND NOT EXISTS (
		SELECT FROM "public".weir_balance b
		WHERE (b.name, b.key) = (h.name, h.key) AND NOT (b.shard = -1 OR (b.shard > 0 OR b.value = '-Infinity'::float8) AND (b.paused_until IS NULL OR b.paused_until <= c.clock)
		AND CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', c.clock - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END >= b.capacity
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8) > $6::bigint::float8)))
), alone AS MATERIALIZED (
	SELECT b.name, b.key, b.shard FROM page JOIN "public".weir_balance b USING (name, key, shard) CROSS JOIN c
	WHERE b.shard >= 0 AND (b.shard = 0) = (b.value > '-Infinity'::float8) AND (b.paused_until IS NULL OR b.paused_until <= c.clock)
		AND CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', c.clock - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END >= b.capacity
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8) > $6::bigint::float8)
	FOR UPDATE OF b SKIP LOCKED
), shards AS MATERIALIZED (
	SELECT b.name, b.key, b.shard FROM head JOIN "public".weir_balance b USING (name, key) CROSS JOIN c
	WHERE b.shard = -1 AND b.value = head.value OR (b.shard > 0 OR b.value = '-Infinity'::float8) AND (b.paused_until IS NULL OR b.paused_until <= c.clock)
		AND CASE WHEN b.value = '-Infinity' THEN 0::float8 ELSE b.value END + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', c.clock - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END >= b.capacity
		AND (coalesce(b.delay, 0) = 0 AND coalesce(b.moved, 0) = 0::float8
			OR round(date_part('epoch', c.clock - greatest(b.ts, b.paused_until)) * 1e6::float8) > $6::bigint::float8)
	FOR UPDATE OF b SKIP LOCKED
), idle AS (
	SELECT name, key, shard FROM alone
	UNION SELECT s.name, s.key, s.shard FROM shards s
	WHERE (SELECT count(*) FROM shards o WHERE (o.name, o.key) = (s.name, s.key)) =
		(SELECT count(*) FROM "public".weir_balance o WHERE (o.name, o.key) = (s.name, s.key))
), gone AS (
	DELETE FROM "public".weir_balance b USING idle WHERE (b.name, b.key, b.shard) = (idle.name, idle.key, idle.shard) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.name, last.key, last.shard
FROM (SELECT name, key, shard FROM page ORDER BY name DESC, key DESC, shard DESC LIMIT 1) last;

-- pruneSettled: deletes a page of settlements that nobody can repeat any more
WITH page AS MATERIALIZED (
	SELECT id, until FROM "public".weir_settled WHERE id > $1::uuid ORDER BY id LIMIT $2::bigint
), gone AS (
	DELETE FROM "public".weir_settled s USING page WHERE s.id = page.id AND page.until <= coalesce($3::timestamptz, clock_timestamp()) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.id FROM (SELECT id FROM page ORDER BY id DESC LIMIT 1) last;

-- pruneSlots: deletes a page of slots that nobody holds
WITH page AS MATERIALIZED (
	SELECT name, key, slot FROM "public".weir_slot WHERE (name, key, slot) > ($1::text, $2::text, $3::integer)
	ORDER BY name, key, slot LIMIT $4::bigint
), free AS MATERIALIZED (
	SELECT s.name, s.key, s.slot FROM page JOIN "public".weir_slot s USING (name, key, slot)
	CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
	WHERE s.until <= c.clock AND s.token <= round(date_part('epoch', c.clock) * 1e6::float8)::bigint - 3600000000 FOR UPDATE OF s SKIP LOCKED
), gone AS (
	DELETE FROM "public".weir_slot s USING free WHERE (s.name, s.key, s.slot) = (free.name, free.key, free.slot) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone), last.name, last.key, last.slot
FROM (SELECT name, key, slot FROM page ORDER BY name DESC, key DESC, slot DESC LIMIT 1) last;

-- put: overwrites a row, under the lock of the head
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until, delay, moved)
VALUES ($1::text, $2::text, $3::integer, $7::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz, $10::timestamptz, nullif($11::bigint, 0), nullif($12::float8, 0::float8))
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin,
	paused_until = excluded.paused_until, delay = excluded.delay, moved = excluded.moved
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- ranges: reads by which ranges of hashes Citus divides the balances
SELECT shardminvalue::integer FROM pg_catalog.pg_dist_shard
WHERE logicalrelid OPERATOR(pg_catalog.=) '"public".weir_balance'::regclass::oid AND shardminvalue IS NOT NULL;

-- reset: fills a balance
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = CASE WHEN b.value = '-Infinity' THEN b.value ELSE $7 END,
	ts = CASE WHEN b.value = '-Infinity' THEN b.ts ELSE excluded.ts END, capacity = CASE WHEN b.value = '-Infinity' THEN b.capacity ELSE excluded.capacity END, rate = CASE WHEN b.value = '-Infinity' THEN b.rate ELSE excluded.rate END, period = CASE WHEN b.value = '-Infinity' THEN b.period ELSE excluded.period END, origin = CASE WHEN b.value = '-Infinity' THEN b.origin ELSE excluded.origin END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- resetKey: fills the balances of a key in all limits
WITH RECURSIVE names (name) AS (
	(SELECT name FROM "public".weir_balance ORDER BY name LIMIT 1)
	UNION ALL
	SELECT (SELECT b.name FROM "public".weir_balance b WHERE b.name > n.name ORDER BY b.name LIMIT 1) FROM names n WHERE n.name IS NOT NULL
), held AS MATERIALIZED (
	SELECT b.name, b.shard FROM names n JOIN "public".weir_balance b ON b.name = n.name AND b.key = $1::text AND b.shard >= 0
	ORDER BY pg_catalog.right(b.name, 9) = ' (shadow)', b.name, b.shard FOR NO KEY UPDATE OF b
)
UPDATE "public".weir_balance b SET value = $2::float8, ts = coalesce($3::timestamptz, clock_timestamp())
FROM held WHERE b.name = held.name AND b.key = $1::text AND b.shard = held.shard AND b.value > '-Infinity'
RETURNING true;

-- resetKeyHere: resetKey, Portable
WITH c AS MATERIALIZED (
	SELECT coalesce($3::timestamptz, clock_timestamp()) AS now
), held AS MATERIALIZED (
	SELECT name, shard FROM "public".weir_balance WHERE key = $1::text AND shard >= 0
	ORDER BY pg_catalog.right(name, 9) = ' (shadow)', name, shard FOR NO KEY UPDATE
)
UPDATE "public".weir_balance b SET value = $2::float8, ts = c.now
FROM held, c WHERE b.name = held.name AND b.key = $1::text AND b.shard = held.shard AND b.value > '-Infinity'
RETURNING true;

-- resumeClosed: ends their pause early
WITH c AS MATERIALIZED (
	SELECT $3::timestamptz AS now, $4::timestamptz AS line
), held AS MATERIALIZED (
	SELECT b.shard, CASE WHEN b.origin IS NULL
		THEN greatest(0, round(date_part('epoch', $4::timestamptz - $5::timestamptz) * 1e6::float8))::bigint
		ELSE b.period * greatest(0,
		floor(round(date_part('epoch', $4::timestamptz - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', $5::timestamptz - b.origin) * 1e6::float8) / b.period::float8))::bigint END AS delay
	FROM "public".weir_balance b
	WHERE b.name = $1::text AND b.key = $2::text AND b.shard >= 0 AND b.value = '-Infinity'
	ORDER BY b.shard FOR NO KEY UPDATE
)
UPDATE "public".weir_balance b SET
	ts = greatest(b.ts, c.now),
	paused_until = CASE WHEN b.paused_until > c.line THEN to_timestamp((round(date_part('epoch', b.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) - held.delay::float8) / 1e6::float8) END,
	delay = coalesce(b.delay, 0) - CASE WHEN b.paused_until > c.line
		THEN held.delay
		ELSE CASE WHEN b.origin IS NULL
		THEN greatest(0, round(date_part('epoch', b.paused_until - greatest(b.ts, c.now)) * 1e6::float8))::bigint
		ELSE b.period * greatest(0,
		floor(round(date_part('epoch', b.paused_until - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, c.now) - b.origin) * 1e6::float8) / b.period::float8))::bigint END END
FROM held, c WHERE b.name = $1::text AND b.key = $2::text AND b.shard = held.shard AND b.paused_until > c.now
RETURNING true;

-- settle: notes a settlement; no row if the reservation was settled before
INSERT INTO "public".weir_settled (id, until, key)
SELECT $1::uuid, $2::timestamptz, $4::text WHERE $2::timestamptz > coalesce($3::timestamptz, clock_timestamp())
ON CONFLICT (id, key) DO NOTHING
RETURNING true;

-- twoPhase: requests two-phase commit for a transaction of the caller's own, on Citus
DELETE FROM "public".weir_two_phase;

-- twoPhaseIf: the same at COMMIT, if the transaction has written the coordinator
DO $weir_two_phase$BEGIN IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL
		AND EXISTS (SELECT FROM pg_catalog.pg_dist_local_group WHERE groupid OPERATOR(pg_catalog.=) 0) THEN
	DELETE FROM "public".weir_two_phase; END IF; END$weir_two_phase$;

-- window.give: gives back what is left of a take, as if it had been smaller
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $10::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least(b.capacity, b.value + (CASE WHEN (floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ((floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) - 1::float8)) END - $11::float8))),
	moved = CASE WHEN NOT $12::boolean OR b.value >= 0::float8 OR b.value = '-Infinity' THEN b.moved
		ELSE coalesce(b.moved, 0) + (-b.value - greatest(0, -greatest(b.value, least(b.capacity, b.value + (CASE WHEN (floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ((floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) - 1::float8)) END - $11::float8))))) END
WHERE (CASE WHEN (floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ((floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) - 1::float8)) END - $11::float8) > 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.giveShard: give, of a shard: takes prefer others until the transaction ends
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $10::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least(b.capacity, b.value + (CASE WHEN (floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ((floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) - 1::float8)) END - $11::float8))),
	moved = CASE WHEN NOT $12::boolean OR b.value >= 0::float8 OR b.value = '-Infinity' THEN b.moved
		ELSE coalesce(b.moved, 0) + (-b.value - greatest(0, -greatest(b.value, least(b.capacity, b.value + (CASE WHEN (floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ((floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) - 1::float8)) END - $11::float8))))) END
WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($17::integer, pg_catalog.hashoid('"public".weir_balance'::regclass::oid))) IS NOT NULL AND (CASE WHEN (floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * ((floor(round(date_part('epoch', greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END) - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $13::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor((coalesce(b.delay, 0) - $15::bigint)::float8 / $6::float8)) - 1::float8)) END - $11::float8) > 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.pause: closes a balance for a while
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until, delay)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $7::float8 END, coalesce($8::timestamptz, statement_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	coalesce($8::timestamptz, statement_timestamp()) + $10::bigint::float8 * interval '1 microsecond', $6 * greatest(0,
		floor(round(date_part('epoch', coalesce($8::timestamptz, statement_timestamp()) + $10::bigint::float8 * interval '1 microsecond' - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', coalesce($11::timestamptz, coalesce($8::timestamptz, statement_timestamp())) - $9::timestamptz) * 1e6::float8) / $6::float8))::bigint)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least(b.capacity, b.value + CASE WHEN b.origin IS NULL
		THEN b.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / b.period::float8
		ELSE b.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - b.origin) * 1e6::float8) / b.period::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - b.origin) * 1e6::float8) / b.period::float8)) END)),
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.value = '-Infinity' THEN b.paused_until
		WHEN b.paused_until > $11::timestamptz
		THEN greatest(to_timestamp((round(date_part('epoch', b.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) + excluded.delay::float8) / 1e6::float8),
			to_timestamp((round(date_part('epoch', excluded.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) + 1::float8) / 1e6::float8))
		ELSE greatest(b.paused_until, excluded.paused_until) END,
	delay = coalesce(b.delay, 0) + CASE WHEN b.value = '-Infinity' THEN 0
		WHEN b.paused_until > $11::timestamptz THEN excluded.delay
		ELSE $6 * greatest(0,
		floor(round(date_part('epoch', excluded.paused_until - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until, excluded.ts) - $9::timestamptz) * 1e6::float8) / $6::float8))::bigint END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.resume: ends a pause early
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, delay)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz,
	$6 * greatest(0,
		floor(round(date_part('epoch', $10::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', $11::timestamptz - $9::timestamptz) * 1e6::float8) / $6::float8))::bigint)
ON CONFLICT (name, key, shard) DO UPDATE SET
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.value = '-Infinity' THEN b.paused_until
		WHEN b.paused_until > $10::timestamptz
		THEN to_timestamp((round(date_part('epoch', b.paused_until - timestamptz '1970-01-01 00:00:00+00') * 1e6::float8) - excluded.delay::float8) / 1e6::float8) END,
	delay = coalesce(b.delay, 0) - CASE WHEN b.value = '-Infinity' THEN 0
		WHEN b.paused_until > $10::timestamptz THEN excluded.delay
		ELSE $6 * greatest(0,
		floor(round(date_part('epoch', b.paused_until - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, excluded.ts) - $9::timestamptz) * 1e6::float8) / $6::float8))::bigint END
WHERE b.paused_until > excluded.ts OR b.value = '-Infinity'
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.take: grants a call for one row, or answers with no row
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.takeOrFail: take, for SendBatch: fails the transaction in place of no row
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE CASE WHEN least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
	THEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.takeOwn: take, of a shard that nobody else is expected to hold: no row if somebody does
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, $3::integer, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz
WHERE ($13::integer IS NULL OR pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($13, pg_catalog.hashoid('"public".weir_balance'::regclass::oid))))
	AND pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor($12::integer, pg_catalog.hashoid('"public".weir_balance'::regclass::oid)))
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.takeParts: takes equal parts of a call from several shards, if no other transaction holds them
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
WITH c AS (SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor(pg_catalog.int4xor($12::integer, u.shard), pg_catalog.hashoid('"public".weir_balance'::regclass::oid)))
	LIMIT $13::bigint)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz
FROM c WHERE (SELECT count(*) FROM c) = $13 ORDER BY c.shard
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved, b.shard;

-- window.takeShard: take, of the first of several shards that no other transaction holds
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz
FROM ((SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor(pg_catalog.int4xor($12::integer, u.shard), pg_catalog.hashoid('"public".weir_balance'::regclass::oid))))
	UNION ALL (SELECT ($3::integer[])[1] WHERE $13::boolean)
	LIMIT 1) c
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts OR $11::boolean)
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved, b.shard;

-- window.takeShardWithin: takeWithin, of the first of several shards
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT $1::text, $2::text, c.shard, '-Infinity'::float8, coalesce($8::timestamptz, clock_timestamp()),
	CASE WHEN c.shard = $14::integer THEN $15::float8 ELSE $4::float8 END,
	CASE WHEN c.shard = $14 THEN $16::float8 ELSE $5::float8 END, $6::bigint, $9::timestamptz
FROM ((SELECT u.shard FROM pg_catalog.unnest($3::integer[]) AS u (shard)
	WHERE pg_try_advisory_xact_lock(1466263922, pg_catalog.int4xor(pg_catalog.int4xor($12::integer, u.shard), pg_catalog.hashoid('"public".weir_balance'::regclass::oid))))
	UNION ALL (SELECT ($3::integer[])[1] WHERE $13::boolean)
	LIMIT 1) c
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8) <= $11::float8
	AND (least(excluded.capacity, b.value + excluded.rate * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8) + $17::float8 + excluded.rate * greatest(0,
		floor((round(date_part('epoch', greatest(b.ts, excluded.ts) - $9::timestamptz) * 1e6::float8) + $11::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8)) >= 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved, b.shard;

-- window.takeWithin: grants it for later, in a pause too, if it may run in time
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8) <= $11::float8
	AND (least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8) + $12::float8 + $5::float8 * greatest(0,
		floor((round(date_part('epoch', greatest(b.ts, excluded.ts) - $9::timestamptz) * 1e6::float8) + $11::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8)) >= 0::float8
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;

-- window.takeWithinOrFail: takeWithin, for SendBatch
INSERT INTO "public".weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, CASE WHEN $3::integer > 0 THEN '-Infinity'::float8 ELSE $4::float8 - $7::float8 END, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8,
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE CASE WHEN least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8 >= $10::float8
	AND round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - greatest(b.ts, excluded.ts)) * 1e6::float8) <= $11::float8
	AND (least($4::float8, b.value + $5::float8 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $9::timestamptz) * 1e6::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8))) - $7::float8) + $12::float8 + $5::float8 * greatest(0,
		floor((round(date_part('epoch', greatest(b.ts, excluded.ts) - $9::timestamptz) * 1e6::float8) + $11::float8) / $6::float8) -
		floor(round(date_part('epoch', greatest(b.ts, excluded.ts, b.paused_until) - $9::timestamptz) * 1e6::float8) / $6::float8)) >= 0::float8
	THEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END
RETURNING b.value, b.ts, b.paused_until, b.delay, b.moved;
