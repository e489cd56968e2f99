-- +goose Up

-- The balances of all limits. One row per limit, key and shard, written on first use; no row means a full limit.
--
-- Two columns decide: value, the tokens left at ts (negative: tokens owed by a reservation), and ts, the database's
-- clock when the row was last taken from. The rule that took last stands beside them (capacity, rate, period, origin), so
-- that whoever reads a row without the program's definitions knows what it is worth and whether it is full again.
--
-- A pause stops the row's time: until paused_until nothing flows in, and nothing is granted but ahead. What it puts off by
-- that is added up in delay, so that whoever waits for tokens that were reserved earlier can tell how much later they come.
-- In the same way moved adds up the tokens by which the line of those who wait has moved up, when settlements give back what
-- was reserved and not used, less what they charge for what was used beyond.
--
-- A limit that is spread over n > 1 shards has a head, a row with shard = -1 whose value is n, and a row for each shard that
-- was used: those of shards 0 to n-1 are numbered from n*(n-1)/2 on, so that the rows of two layouts never meet. What is left
-- of other layouts is closed: value = -Infinity. Without a head there is one shard, number 0.
--
-- A row that is full by its own rule, not paused, and whose delay and moved are 0 is like no row. One whose delay or moved is
-- not 0 may have been noted by somebody who still waits.
--
-- Fixed-width columns come first: the decision then reads them at known offsets. Nothing but the primary key is
-- indexed and pages keep a fifth of their room free, so that each take is a HOT update.
CREATE TABLE weir_balance (
    value    double precision NOT NULL,
    ts       timestamptz      NOT NULL,
    capacity double precision NOT NULL,
    rate     double precision NOT NULL, -- tokens a period
    period   bigint           NOT NULL, -- microseconds
    delay    bigint           NOT NULL DEFAULT 0, -- microseconds; it matters only by its differences
    moved    double precision NOT NULL DEFAULT 0, -- tokens; likewise
    origin   timestamptz,               -- the instant that windows are counted from; null: a token bucket
    paused_until timestamptz,           -- null, or past: not paused
    shard    integer          NOT NULL DEFAULT 0,
    name     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,

    -- There are no CHECKs: each is parsed anew for each statement, which would make a take 3 % slower. What the columns may
    -- hold is checked before it is sent. A value that somebody else has set to NaN or infinity counts as full, and is a number
    -- again with the next take, as least(capacity, NaN) is the capacity. -Infinity never refills, so it closes a balance for
    -- good: that of a shard which a change of layout has emptied.
    PRIMARY KEY (name, key, shard)
) WITH (
    fillfactor = 80,
    -- Vacuum by dead rows, not by a share of the table: a hot row in a large table must not wait for a fifth of it.
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0
);

-- Reads one balance, by its index whatever the planner thinks of it: a sequential scan, which is what it prefers for a
-- table of few rows, takes a predicate lock on the whole table, and under SERIALIZABLE unrelated keys then abort each
-- other. Locks: none. Predicate reads: the row, or the index page where it would stand.
--
-- Always one row, of nulls but for at where there is no balance. at is the clock, or now_ where a test sets it.
-- +goose StatementBegin
CREATE FUNCTION weir_look(name_ text, key_ text, shard_ integer, now_ timestamptz,
                          OUT value double precision, OUT ts timestamptz, OUT paused_until timestamptz, OUT delay bigint,
                          OUT moved double precision, OUT at timestamptz)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    SELECT b.value, b.ts, b.paused_until, b.delay, b.moved INTO value, ts, paused_until, delay, moved
    FROM weir_balance b
    WHERE b.name = name_ AND b.key = key_ AND b.shard = shard_;
    at := coalesce(now_, clock_timestamp());
END
$$;
-- +goose StatementEnd

-- Reads all shards of a limit in its present layout, in the same way. n is what its head says, or 1. Times are in
-- microseconds, and of a row that is not paused pauses has the least bigint.
-- +goose StatementBegin
CREATE FUNCTION weir_look_shards(name_ text, key_ text, now_ timestamptz,
                                 OUT n integer, OUT shards integer[], OUT balances double precision[], OUT times bigint[],
                                 OUT pauses bigint[], OUT delays bigint[], OUT moves double precision[], OUT at timestamptz)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    SELECT b.value INTO n FROM weir_balance b WHERE b.name = name_ AND b.key = key_ AND b.shard = -1;
    n := coalesce(n, 1);
    SELECT array_agg(b.shard), array_agg(b.value), array_agg(round(date_part('epoch', b.ts) * 1e6)::bigint),
           array_agg(coalesce(round(date_part('epoch', b.paused_until) * 1e6)::bigint, -9223372036854775808)),
           array_agg(b.delay), array_agg(b.moved)
    INTO shards, balances, times, pauses, delays, moves
    FROM weir_balance b
    WHERE b.name = name_ AND b.key = key_ AND b.shard BETWEEN n * (n - 1) / 2 AND n * (n - 1) / 2 + n - 1;
    at := coalesce(now_, clock_timestamp());
END
$$;
-- +goose StatementEnd

-- weir_look reads the table beside it, whatever the search_path of the session that calls it. SET search_path FROM CURRENT
-- would say nearly that, but would keep the whole path, "$user" included, of whoever applies this file by hand.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION weir_look(text, text, integer, timestamptz) SET search_path = %I', current_schema());
    EXECUTE format('ALTER FUNCTION weir_look_shards(text, text, timestamptz) SET search_path = %I', current_schema());
END
$$;
-- +goose StatementEnd

-- The reservations that were settled or released: what makes it happen once. A settlement writes its row before it touches a
-- balance. After until none is settled any more, so that a row may be removed then.
--
-- Ids are UUIDs of version 7: they grow, and so does the index, at one end.
CREATE TABLE weir_settled (
    id    uuid        PRIMARY KEY,
    until timestamptz NOT NULL
);

-- The queues of contended balances. They stay empty: a transaction that lost a balance to a serialization failure locks
-- the one its balance hashes to before it tries again. LOCK TABLE takes no snapshot, so it waits first and reads after.
CREATE TABLE weir_queue_0 ();
CREATE TABLE weir_queue_1 ();
CREATE TABLE weir_queue_2 ();
CREATE TABLE weir_queue_3 ();
CREATE TABLE weir_queue_4 ();
CREATE TABLE weir_queue_5 ();
CREATE TABLE weir_queue_6 ();
CREATE TABLE weir_queue_7 ();

-- What has been applied. compatible is the lowest version a release must know to work on this schema: a release that
-- knows only older ones refuses.
CREATE TABLE weir_schema (
    version    integer     PRIMARY KEY,
    compatible integer     NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO weir_schema (version, compatible) VALUES (1, 1);
