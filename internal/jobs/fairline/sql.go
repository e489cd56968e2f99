package fairline

// The statements of a grant, in the order in which they are sent. Each finds its rows by their
// keys.

const (
	// HoldSQL locks a line and keeps it for its holder: no row if it is another client's. A client
	// that hangs in the middle of a grant keeps nobody waiting: Postgres ends its transaction.
	//
	// $1 name $2 key $3 holder $4 for how long
	HoldSQL = `INSERT INTO {ours}weir_line AS l (name, key, virtual, others, value, seen, until, holder)
VALUES ($1::text, $2::text, 0, 0, 0, '-infinity', now() + $4::interval, $3::uuid)
ON CONFLICT (name, key) DO UPDATE SET holder = excluded.holder, until = excluded.until
	WHERE l.holder = excluded.holder OR l.until <= now()
RETURNING l.virtual, l.others, l.value, pg_catalog.isfinite(l.seen), CASE WHEN pg_catalog.isfinite(l.seen) THEN l.seen ELSE now() END,
	pg_catalog.set_config('idle_in_transaction_session_timeout', '2000', true)`

	// turnsSQL reads the next jobs of each tenant that waits, and corrections of what tenants were
	// charged. It goes from tenant to tenant by the primary key, and reads at most so many rows for
	// each priority of each.
	//
	// $1 name $2 key $3 most of each $4 except these jobs
	turnsSQL = `WITH RECURSIVE tenant AS (
	(SELECT w.tenant FROM {ours}weir_turn w WHERE w.name = $1::text AND w.key = $2::text ORDER BY w.tenant LIMIT 1)
	UNION ALL
	SELECT (SELECT w.tenant FROM {ours}weir_turn w
		WHERE w.name = $1::text AND w.key = $2::text AND w.tenant > t.tenant ORDER BY w.tenant LIMIT 1)
	FROM tenant t WHERE t.tenant IS NOT NULL
)
SELECT t.tenant, coalesce(s.at, '-Infinity'), coalesce(s.credit, 0), w.priority, w.due, w.job, w.cost, w.weight,
	coalesce(j.state::text, ''), coalesce(j.attempt, 0), coalesce(j.queue, ''), j.ticket
FROM tenant t
	LEFT JOIN {ours}weir_line_tenant s ON s.name = $1::text AND s.key = $2::text AND s.tenant = t.tenant
	CROSS JOIN generate_series(0, 4) AS p (priority)
	CROSS JOIN LATERAL (
		SELECT priority, due, job, cost, weight FROM {ours}weir_turn
		WHERE name = $1::text AND key = $2::text AND tenant = t.tenant AND priority = p.priority AND due <= now()
			AND job <> ALL ($4::bigint[])
		ORDER BY due, job LIMIT $3::integer
	) w
	LEFT JOIN LATERAL (
		SELECT state, attempt, queue, metadata->'weir'::text AS ticket FROM {river}river_job
		WHERE id = w.job OFFSET 0
	) j ON true
WHERE t.tenant IS NOT NULL`

	// UnfetchedSQL tells which of the jobs that were granted do not run, and when they start. The
	// state is text: see LockSQL of riverjob.
	//
	// $1 ids
	UnfetchedSQL = `SELECT id, scheduled_at FROM {river}river_job
WHERE id = ANY ($1::bigint[]) AND state::text IN ('available', 'scheduled')`

	// ChosenSQL locks the jobs whose turn it is, except those that somebody else is changing.
	//
	// $1 ids
	ChosenSQL = `SELECT id FROM {river}river_job
WHERE id = ANY ($1::bigint[]) AND state::text IN ('available', 'scheduled')
ORDER BY id FOR UPDATE SKIP LOCKED`

	// grantSQL gives jobs that are locked their times.
	//
	// $1 an array of waiters
	grantSQL = `UPDATE {river}river_job j SET scheduled_at = m.due,
	state = CASE WHEN m.near THEN 'available' ELSE 'scheduled' END::{river}river_job_state,
	metadata = jsonb_set(j.metadata, '{weir}'::text[], m.ticket)
FROM jsonb_to_recordset($1::text::jsonb) AS m (id bigint, due timestamptz, near boolean, ticket jsonb)
WHERE j.id = m.id`

	// leaveSQL has a job leave the line. It is one statement for each job, as those of several
	// might be found by name and key alone: Postgres may not know yet how many wait.
	//
	// $1 name $2 key $3 tenant $4 priority $5 time $6 job
	leaveSQL = `DELETE FROM {ours}weir_turn
WHERE name = $1::text AND key = $2::text AND tenant = $3::text AND priority = $4::smallint
	AND due = $5::timestamptz AND job = $6::bigint`

	// goneSQL has a job leave the line that has gone, unless it was retried by hand since that was
	// read: it may have been put back in line, in which it still stood.
	//
	// $1 name $2 key $3 tenant $4 priority $5 time $6 job
	goneSQL = leaveSQL + ` AND NOT EXISTS (
	SELECT FROM {river}river_job WHERE id = $6::bigint AND finalized_at IS NULL
)`

	// chargeSQL notes what tenants have had.
	//
	// $1 name $2 key, and arrays of $3 tenants $4 virtual times $5 credits
	chargeSQL = `INSERT INTO {ours}weir_line_tenant AS t (name, key, tenant, at, credit)
SELECT $1::text, $2::text, c.tenant, c.at, c.credit
FROM unnest($3::text[], $4::float8[], $5::float8[]) AS c (tenant, at, credit)
ON CONFLICT (name, key, tenant) DO UPDATE SET at = excluded.at, credit = excluded.credit`

	// passSQL notes how the line stands.
	//
	// $1 name $2 key $3 virtual time $4 that of the others $5 what the limit has $6 and when
	passSQL = `UPDATE {ours}weir_line
SET virtual = $3::float8, others = $4::float8, value = $5::float8, seen = $6::timestamptz
WHERE name = $1::text AND key = $2::text`

	// forfeitSQL takes the credit of tenants that do not wait.
	//
	// $1 name $2 key
	forfeitSQL = `UPDATE {ours}weir_line_tenant t SET credit = 0
WHERE name = $1::text AND key = $2::text AND credit > '0' AND NOT EXISTS (
	SELECT FROM {ours}weir_turn w WHERE w.name = t.name AND w.key = t.key AND w.tenant = t.tenant
)`

	// forgetSQL deletes tenants that are like those that nobody has noted.
	//
	// $1 name $2 key $3 virtual time
	forgetSQL = `DELETE FROM {ours}weir_line_tenant
WHERE name = $1::text AND key = $2::text AND at <= $3::float8 AND credit <= '0'`

	// restSQL deletes a line in which nobody waits, with its tenants: all are equal again.
	//
	// $1 name $2 key $3 holder
	restSQL = `WITH line AS (
	DELETE FROM {ours}weir_line WHERE name = $1::text AND key = $2::text AND holder = $3::uuid RETURNING 1
)
DELETE FROM {ours}weir_line_tenant WHERE name = $1::text AND key = $2::text AND EXISTS (SELECT FROM line)`
)
