package slotline

// The jobs that wait for a slot have rows in weir_turn, in which no limit's name is empty. Their
// name is empty, key is River's schema, tenant says which limit and key, cost how many slots there
// are, and the primary key has them in their order. A job that is given a slot loses its row; due
// is then its scheduled_at again.

// ofSchema is the condition for rows of River's schema.
//
// $1 River's schema
const ofSchema = ` name = '' AND key = coalesce(nullif($1::text, ''), current_schema()::text)`

const (
	// othersSQL asks whether jobs wait for a place.
	//
	// $1 River's schema $2 place
	othersSQL = `SELECT EXISTS (SELECT FROM {ours}weir_turn WHERE` + ofSchema +
		` AND tenant = $2::text)`

	// lineUpSQL puts jobs in line. A row that is there is locked: so it is there again if somebody
	// is about to delete it.
	//
	// $1 River's schema $2 place $3 how many slots there are $4 an array of jobs
	lineUpSQL = `INSERT INTO {ours}weir_turn (name, key, tenant, priority, due, job, cost, weight)
SELECT '', coalesce(nullif($1::text, ''), current_schema()::text), $2::text, priority, due, job, $3::double precision, 1
FROM jsonb_to_recordset($4::text::jsonb) AS t (priority smallint, due timestamptz, job bigint)
ON CONFLICT (name, key, tenant, priority, due, job) DO UPDATE SET cost = excluded.cost`

	// inLine are the jobs that wait for a place: not those that have gone or have started, nor
	// those whose put-off is not written yet.
	//
	// $1 River's schema $2 place
	inLine = ` FROM {ours}weir_turn t JOIN {river}river_job j ON j.id = t.job
WHERE t.name = '' AND t.key = coalesce(nullif($1::text, ''), current_schema()::text) AND t.tenant = $2::text
	AND j.state OPERATOR(pg_catalog.=) 'scheduled' AND j.scheduled_at > '2199-12-31'`

	// headSQL locks the first job that waits for a place: its row, and that in line. It passes over
	// jobs that somebody else has locked, and jobs of paused queues.
	//
	// $1 River's schema $2 place $3 except these jobs
	headSQL = `SELECT t.priority, t.due, t.job` + inLine + `
	AND NOT EXISTS (SELECT FROM {river}river_queue q WHERE q.name = j.queue AND q.paused_at IS NOT NULL)
	AND t.job <> ALL ($3::bigint[])
ORDER BY t.priority, t.due, t.job LIMIT 1 FOR UPDATE OF t, j SKIP LOCKED`

	// givenSQL makes a job available that has been given a slot, and notes that in its metadata. It
	// stands in its queue where it stood before. To metadata that is no object the note is appended,
	// as River appends its own.
	//
	// $1 River's schema $2 place $3 priority $4 due $5 job
	givenSQL = `WITH line AS (
	DELETE FROM {ours}weir_turn WHERE` + ofSchema + `
		AND tenant = $2::text AND priority = $3::smallint AND due = $4::timestamptz AND job = $5::bigint
)
UPDATE {river}river_job SET state = 'available', scheduled_at = $4::timestamptz,
	metadata = metadata || '{"` + givenKey + `": true}'::jsonb
WHERE id = $5::bigint`

	// placesSQL finds the places for which jobs wait, from one on: how many slots there are of each
	// by what its first job asks for, and whether that job has left.
	//
	// $1 River's schema $2 after this place $3 most
	placesSQL = `WITH RECURSIVE place AS (
	(SELECT tenant, cost, job FROM {ours}weir_turn WHERE` + ofSchema + ` AND tenant > $2::text
	ORDER BY tenant, priority, due, job LIMIT 1)
	UNION ALL
	SELECT n.tenant, n.cost, n.job FROM place p CROSS JOIN LATERAL (
		SELECT tenant, cost, job FROM {ours}weir_turn WHERE` + ofSchema + ` AND tenant > p.tenant
		ORDER BY tenant, priority, due, job LIMIT 1
	) n
)
SELECT p.tenant, least(greatest(p.cost, 1), 1000000)::integer, NOT EXISTS (SELECT FROM {river}river_job j WHERE j.id = p.job AND ` +
		stays + `)
FROM (SELECT tenant, cost, job FROM place LIMIT $3::integer) p`

	// stays is the condition for a job that keeps its row: it waits, or its put-off may not be
	// written.
	stays = `(j.state OPERATOR(pg_catalog.=) 'running'
	OR j.state OPERATOR(pg_catalog.=) 'scheduled' AND j.scheduled_at > '2199-12-31')`

	// firstSQL locks the first rows of a line, and goneSQL, in a snapshot of later, deletes those
	// of jobs that have left. A job that is put in line again waits for that: see lineUpSQL.
	//
	// $1 River's schema $2 place $3 most
	firstSQL = `SELECT job FROM {ours}weir_turn WHERE` + ofSchema + ` AND tenant = $2::text
ORDER BY priority, due, job LIMIT $3::integer FOR UPDATE SKIP LOCKED`

	// $1 River's schema $2 place $3 jobs
	goneSQL = `DELETE FROM {ours}weir_turn t WHERE` + ofSchema +
		` AND tenant = $2::text AND job = ANY ($3::bigint[])
	AND NOT EXISTS (SELECT FROM {river}river_job j WHERE j.id = t.job AND ` + stays + `)`

	// RunningSQL tells which jobs run. The state is text: see LockSQL of riverjob.
	//
	// $1 ids
	RunningSQL = `SELECT id FROM {river}river_job WHERE id = ANY ($1::bigint[]) AND state::text = 'running'`

	// forSlotSQL reads the jobs that wait for a place, in their order, and whether their queues are
	// paused.
	//
	// $1 River's schema $2 place $3 most
	forSlotSQL = `SELECT t.job, EXISTS (SELECT FROM {river}river_queue q WHERE q.name = j.queue AND q.paused_at IS NOT NULL)` + inLine + `
ORDER BY t.priority, t.due, t.job LIMIT $3::integer`

	// placeOfJobSQL finds the place that a job waits for.
	//
	// $1 River's schema $2 job
	placeOfJobSQL = `SELECT tenant FROM {ours}weir_turn WHERE` + ofSchema + ` AND job = $2::bigint`
)
