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
-- A limit that is divided into n shards has a head, a row with shard = -1 whose value is n + 2^11 * g, and a row for each shard.
-- g is the generation: how often the number of shards has changed. The rows of shards 0 to n-1 are numbered from
-- n*(n-1)/2 + 2^20 * g on, so that the rows of two layouts never meet. What is left of other layouts is closed:
-- value = -Infinity, with delay and moved for those who wait in it, and with what it owed as its capacity. Without a head there is one shard, number 0. A head and its shards are deleted together, and who
-- still knows them writes a row that is closed.
--
-- A row that is full by its own rule, not paused, and whose delay and moved are 0 is like no row. One whose delay or moved is
-- not 0 may have been noted by somebody who still waits.
--
-- Fixed-width columns come first: the decision then reads them at known offsets. Nothing but the primary key is
-- indexed and pages keep some of their room free, so that each take is a HOT update.
CREATE TABLE weir_balance (
    value    double precision NOT NULL,
    ts       timestamptz      NOT NULL,
    capacity double precision NOT NULL,
    rate     double precision NOT NULL, -- tokens a period
    period   bigint           NOT NULL, -- microseconds
    delay    bigint,                    -- microseconds; it matters only by its differences; null is 0
    moved    double precision,          -- tokens; likewise
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
    fillfactor = 85,
    vacuum_truncate = false, -- or the empty pages would go: see below
    -- Vacuum by dead rows, not by a share of the table: a hot row in a large table must not wait for a fifth of it.
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0
);

-- Fifty empty pages, which are filled with time. A table of few pages is read by a sequential scan, which takes a predicate lock
-- on all of it: under SERIALIZABLE, unrelated keys then abort each other. With these the planner goes by the index from the
-- first row on. VACUUM FULL and a restored dump lose them; that costs nothing but those aborts, while the table is small.
INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
SELECT '', repeat('-', 1000) || i::text, 0, now(), 0, 0, 1 FROM generate_series(1, 320) AS i;
DELETE FROM weir_balance;

-- The reservations that were settled or released: what makes it happen once. A settlement writes its row before it touches a
-- balance. After until none is settled any more, so that a row may be removed then. The key is that of the first balance:
-- engines that spread rows over nodes by their key keep both together.
--
-- Ids are UUIDs of version 7: they grow, and so does the index, at one end.
CREATE TABLE weir_settled (
    id    uuid             NOT NULL,
    until timestamptz      NOT NULL,
    key   text COLLATE "C" NOT NULL,

    PRIMARY KEY (id, key)
);

-- The slots that are held: see package slots. A limit of n at once has slots 0 to n-1 for each key, so that the primary key
-- alone keeps two holders out of one slot, and any n+1 out of n.
--
-- holder is the id of one holding: who renews or gives back names it, and so never touches what was given to somebody else
-- meanwhile. From until on, by the database's clock, the slot is free whether its row is still there or not. token grows with
-- each holder of the slot. A row stays when its slot is given back, so that the next token is larger even if the clock was set
-- back; an hour after its last holder began, it may be deleted.
--
-- Nothing but the primary key is indexed and pages keep some of their room free, so that each renewal is a HOT update.
CREATE TABLE weir_slot (
    until  timestamptz NOT NULL,
    token  bigint      NOT NULL DEFAULT 0,
    holder uuid        NOT NULL,
    slot   integer     NOT NULL,
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,

    PRIMARY KEY (name, key, slot)
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0
);

-- Fair lines: jobs that wait for their turn at a limit that many tenants share. See internal/jobs/turn for the arithmetic.
--
-- A line is a limit and a key. Its row is locked by whoever grants turns, for as long as the transaction of that grant
-- lasts; until then, by the database's clock, the holder is the one to grant them. virtual is the line's virtual time.
-- others is the virtual time of those who take without waiting in line; value is what the limit had left at seen.
CREATE TABLE weir_line (
    virtual double precision NOT NULL,
    others  double precision NOT NULL,
    value   double precision NOT NULL,
    seen    timestamptz      NOT NULL,
    until   timestamptz      NOT NULL,
    holder  uuid             NOT NULL,
    name    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,

    PRIMARY KEY (name, key)
) WITH (fillfactor = 50);

-- What tenants of a line have had: at is the virtual time at which their next job starts, credit what they were charged
-- too much, in tokens. A row whose at is not above the line's virtual time, and that has no credit, is like no row.
CREATE TABLE weir_line_tenant (
    at     double precision NOT NULL,
    credit double precision NOT NULL,
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,

    PRIMARY KEY (name, key, tenant)
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0
);

-- The jobs that wait for their turn, in the order in which a tenant's jobs are granted. Whoever inserts a job inserts its
-- row, and whoever grants turns deletes it; nobody else writes it. A row with priority 0 is no job that waits: its cost is
-- what a job has used beyond what its tenant was charged, below 0 if it has used less.
CREATE TABLE weir_turn (
    due      timestamptz      NOT NULL,
    job      bigint           NOT NULL,
    cost     double precision NOT NULL, -- tokens
    weight   double precision NOT NULL, -- of the tenant
    priority smallint         NOT NULL,
    name     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    tenant   text COLLATE "C" NOT NULL,

    PRIMARY KEY (name, key, tenant, priority, due, job)
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0
);

-- What has been applied. compatible is the lowest version a release must know to work on this schema: a release that
-- knows only older ones refuses.
CREATE TABLE weir_schema (
    version    integer     PRIMARY KEY,
    compatible integer     NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO weir_schema (version, compatible) VALUES (1, 1);
