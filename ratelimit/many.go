package ratelimit

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements over many rows at once, for calls that are decided together. All rows are those of
// limits without shards. No statement waits for a row that another transaction has locked, except
// waitSQL, and newManySQL if another transaction has inserted the row and not yet committed.
//
// Each answers with the number of the row in its arguments, counted from 1. Every operator and
// function has an exact match in pg_catalog, so the search_path does not matter.
const (
	// takeManySQL takes tokens that are there, and answers with the rows that it took from. It
	// skips rows that others have locked.
	//
	// A row that is locked stays where it is, so the update finds it by its ctid. It skips a row
	// that was written after its snapshot. The LIMIT lets the planner expect few rows: so it keeps
	// one plan, which goes by the index.
	//
	// Locks: the rows that nobody else has locked, granted or not.
	//
	// $1 names $2 keys $3 capacities $4 rates $5 periods $6 origins, null for buckets $7 tokens
	// $8 clock
	takeManySQL = `UPDATE {schema}weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, b.ctid AS at, {left}
	FROM ({rows}) u JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.ctid = s.at AND s.left >= 0::float8
RETURNING s.nr, ` + columns

	// makeManySQL is takeManySQL that also inserts the rows that do not exist, with negative
	// numbers in its answer. It costs more, so it is used while missing rows are likely. It fails
	// if another transaction inserts one of them first.
	makeManySQL = `WITH s AS MATERIALIZED (
	SELECT u.*, b.at, {left}, CASE WHEN b.at IS NULL THEN NOT EXISTS (
		SELECT FROM {schema}weir_balance b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0) END AS new
	FROM ({rows}) u LEFT JOIN LATERAL (SELECT b.ctid AS at, b.value, b.ts, b.paused_until
		FROM {schema}weir_balance b WHERE b.name = u.name AND b.key = u.key AND b.shard = 0
		FOR NO KEY UPDATE SKIP LOCKED) b ON true
), made AS (
	INSERT INTO {schema}weir_balance (name, key, shard, value, ts, capacity, rate, period, origin)
	SELECT s.name, s.key, 0, s.capacity - s.count, s.now, s.capacity, s.rate, s.period, s.origin FROM s WHERE s.new
), taken AS (
	UPDATE {schema}weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
		capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
	FROM s WHERE b.ctid = s.at AND s.left >= 0::float8
	RETURNING s.nr, ` + columns + `
)
SELECT nr, value, ts, paused_until, delay, moved FROM taken
UNION ALL SELECT -s.nr, s.capacity - s.count, s.now, NULL, NULL, NULL FROM s WHERE s.new`

	// {left} is what a take would leave, according to the rule in the arguments. {rows} are $1 -
	// $8.
	manyLeft = `greatest(b.ts, u.now) AS ts, CASE WHEN b.paused_until > u.now THEN NULL
		ELSE least(u.capacity, b.value + {refill}) - u.count END AS left`

	manyRows = `SELECT u.*, {clock8} AS now
		FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
			WITH ORDINALITY AS u (name, key, capacity, rate, period, origin, count, nr)
		LIMIT pg_catalog.cardinality($1::text[])`

	manyRefill = `CASE WHEN u.origin IS NULL
		THEN u.rate * greatest(0::float8, {us(u.now - greatest(b.ts, b.paused_until))}) / u.period::float8
		ELSE u.rate * greatest(0::float8,
			pg_catalog.floor({us(u.now - u.origin)} / u.period::float8) -
			pg_catalog.floor({us(greatest(b.ts, b.paused_until) - u.origin)} / u.period::float8)) END`

	// lookManySQL reads rows, and the clock: one answer for each, of nulls where there is no row.
	//
	// $1 names $2 keys $3 clock
	lookManySQL = `SELECT u.nr, ` + columns + `, {clock3}
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
LEFT JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0`

	// lockManySQL locks the rows that nobody else has locked, and answers with their numbers.
	// lookManySQL after it then reads what nobody else can change.
	//
	// $1 names $2 keys
	lockManySQL = `SELECT u.nr
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
FOR NO KEY UPDATE OF b SKIP LOCKED`

	// waitSQL locks one row, and waits for it if need be.
	//
	// $1 name $2 key
	waitSQL = `SELECT 1::bigint FROM {schema}weir_balance b
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 FOR NO KEY UPDATE`

	// newManySQL inserts the balances that takes have left in rows that did not exist. It fails if
	// one exists by now. putManySQL does the same for rows that are locked.
	//
	// $1 - $6 as above $7 values $8 times $9 ends of pauses, or null
	newManySQL = `INSERT INTO {schema}weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
SELECT u.*, 0 FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[],
	$7::float8[], $8::timestamptz[], $9::timestamptz[]) AS u`

	onConflictPut = `
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts, paused_until = excluded.paused_until,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin`

	putManySQL = newManySQL + onConflictPut

	// The portable forms, of one row each: distributed engines route a statement by its key, and
	// take SKIP LOCKED for one key only.
	//
	// takeOneSQL knows the row by its key: the update finds what the subquery has locked, also if
	// that was written after the snapshot. Citus wants no clock in coalesce, and no clock_timestamp
	// where a row is updated.
	takeOneSQL = `UPDATE {schema}weir_balance b SET value = s.left, ts = s.ts, paused_until = NULL,
	capacity = s.capacity, rate = s.rate, period = s.period, origin = s.origin
FROM (SELECT u.nr, u.capacity, u.rate, u.period, u.origin, {left}
	FROM (SELECT 1::bigint AS nr, $3::float8 AS capacity, $4::float8 AS rate, $5::bigint AS period,
			$6::timestamptz AS origin, $7::float8 AS count,
			greatest($8::timestamptz, least(pg_catalog.statement_timestamp(),
				coalesce($8::timestamptz, 'infinity'::timestamptz))) AS now) u
		JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0
	FOR NO KEY UPDATE OF b SKIP LOCKED) s
WHERE b.name = $1::text AND b.key = $2::text AND b.shard = 0 AND s.left >= 0::float8
RETURNING s.nr, ` + columns

	lookOneSQL = `SELECT 1::bigint, ` + columns + `, {clock3}
FROM (VALUES (1)) AS one
LEFT JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = 0`

	lockOneSQL = waitSQL + ` SKIP LOCKED`

	newOneSQL = `INSERT INTO {schema}weir_balance AS b
	(name, key, capacity, rate, period, origin, value, ts, paused_until, shard)
VALUES ($1::text, $2::text, $3::float8, $4::float8, $5::bigint, $6::timestamptz,
	$7::float8, $8::timestamptz, $9::timestamptz, 0)`

	putOneSQL = newOneSQL + onConflictPut
)

// manyTexts are the texts for one schema.
type manyTexts struct{ take, make, look, lock, wait, put, new string }

func newManyTexts(prefix string, portable bool) manyTexts {
	t := manyTexts{takeManySQL, makeManySQL, lookManySQL, lockManySQL, waitSQL, putManySQL, newManySQL}
	if portable {
		t = manyTexts{takeOneSQL, "", lookOneSQL, lockOneSQL, waitSQL, putOneSQL, newOneSQL}
	}
	inner := strings.NewReplacer("{rows}", manyRows, "{left}", strings.Replace(manyLeft, "{refill}", manyRefill, 1))
	r := strings.NewReplacer("{schema}", prefix,
		"{clock3}", "coalesce($3::timestamptz, pg_catalog.clock_timestamp())",
		"{clock8}", "coalesce($8::timestamptz, pg_catalog.clock_timestamp())",
		"{us(", "pg_catalog.round(pg_catalog.date_part('epoch'::text, ", ")}", ") * 1e6::float8)")
	for _, text := range []*string{&t.take, &t.make, &t.look, &t.lock, &t.wait, &t.put, &t.new} {
		*text = r.Replace(inner.Replace(*text))
	}
	return t
}

// many is one such statement, and the rows that it is about.
type many struct {
	sql   string
	args  []any
	rows  []*standing
	looks bool // it answers with the clock as well
	locks bool // it answers with numbers alone: those of the rows that it has locked
}

// standing is a row, the calls for it, and what the database answered about it.
type standing struct {
	c       *call // the place, and the rule by which it is written
	waiters []*waiter
	count   float64 // what all of them ask for
	taken   bool    // takeManySQL has taken all of it
	made    bool    // and the row was inserted
	locked  bool    // by this transaction
	found   bool    // the row exists
	left    balance
	at      int64 // the clock when it was read
	changed bool
}

// forEach returns the statements for rows: one for all, or in the portable form one for each.
func (l *Limiter) forEach(sql string, rows []*standing, columns ...any) []*many {
	if !l.portable {
		return []*many{{sql: sql, args: columns, rows: rows}}
	}
	statements := make([]*many, len(rows))
	for i := range rows {
		args := make([]any, len(columns))
		for k, column := range columns {
			switch column := column.(type) {
			case []string:
				args[k] = column[i]
			case []float64:
				args[k] = column[i]
			case []int64:
				args[k] = column[i]
			case []pgtype.Timestamptz:
				args[k] = column[i]
			default: // the clock
				args[k] = column
			}
		}
		statements[i] = &many{sql: sql, args: args, rows: rows[i : i+1]}
	}
	return statements
}

// placesOf returns $1 and $2, and rulesOf returns $3 to $6.
func placesOf(rows []*standing) (names, keys []string) {
	names, keys = make([]string, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		names[i], keys[i] = r.c.name, r.c.key
	}
	return names, keys
}

func rulesOf(rows []*standing) (capacities, rates []float64, periods []int64, origins []pgtype.Timestamptz) {
	n := len(rows)
	capacities, rates = make([]float64, n), make([]float64, n)
	periods, origins = make([]int64, n), make([]pgtype.Timestamptz, n)
	for i, r := range rows {
		capacities[i], rates[i], periods[i] = r.c.capacity, r.c.rate, r.c.period
		if r.c.windowed {
			origins[i] = pgtype.Timestamptz{Time: fromMicro(r.c.origin), Valid: true}
		}
	}
	return capacities, rates, periods, origins
}

func (l *Limiter) takeMany(sql string, rows []*standing) []*many {
	counts := make([]float64, len(rows))
	for i, r := range rows {
		counts[i] = r.count
	}
	names, keys := placesOf(rows)
	capacities, rates, periods, origins := rulesOf(rows)
	return l.forEach(sql, rows, names, keys, capacities, rates, periods, origins, counts, l.now())
}

func (l *Limiter) lookMany(rows []*standing) []*many {
	names, keys := placesOf(rows)
	statements := l.forEach(l.many.look, rows, names, keys, l.now())
	for _, s := range statements {
		s.looks = true
	}
	return statements
}

func (l *Limiter) lockMany(rows []*standing) []*many {
	names, keys := placesOf(rows)
	statements := l.forEach(l.many.lock, rows, names, keys)
	for _, s := range statements {
		s.locks = true
	}
	return statements
}

// waitFor waits for one row and locks it. The statements after it lock it again, which costs no
// wait.
func (l *Limiter) waitFor(at place) *many {
	return &many{sql: l.many.wait, args: []any{at.name, at.key}, locks: true}
}

// putMany writes the rows that have changed. Those that do not exist are inserted, and returned as
// missing.
func (l *Limiter) putMany(rows []*standing) (statements []*many, missing []*standing) {
	var there []*standing
	for _, r := range rows {
		switch {
		case !r.changed:
		case r.found:
			there = append(there, r)
		default:
			missing = append(missing, r)
		}
	}
	put := func(sql string, rows []*standing) {
		if len(rows) == 0 {
			return
		}
		values := make([]float64, len(rows))
		times, pauses := make([]pgtype.Timestamptz, len(rows)), make([]pgtype.Timestamptz, len(rows))
		for i, r := range rows {
			values[i] = r.left.value
			times[i] = pgtype.Timestamptz{Time: fromMicro(r.left.ts), Valid: true}
			if r.left.pausedUntil != open {
				pauses[i] = pgtype.Timestamptz{Time: fromMicro(r.left.pausedUntil), Valid: true}
			}
		}
		names, keys := placesOf(rows)
		capacities, rates, periods, origins := rulesOf(rows)
		statements = append(statements, l.forEach(sql, rows,
			names, keys, capacities, rates, periods, origins, values, times, pauses)...)
	}
	put(l.many.put, there)
	put(l.many.new, missing)
	return statements, missing
}

// roundTrip runs statements in one round trip. A lone statement is sent without BEGIN and COMMIT,
// as by [Autocommit].
func roundTrip(
	ctx context.Context, conn *pgxpool.Conn, begin []string, commit bool, statements ...*many,
) error {
	session := conn.Conn().PgConn().CustomData()
	if commit && isPlain(begin) && len(statements) == 1 && session[strictSession] == nil {
		err := statements[0].send(ctx, conn.Conn())
		if !isConflict(err) {
			return committed(err)
		}
		session[strictSession] = true
	}
	batch := &pgx.Batch{}
	for _, sql := range begin {
		batch.Queue(sql)
	}
	for _, s := range statements {
		batch.Queue(s.sql, s.args...)
	}
	if commit {
		batch.Queue("COMMIT")
	}
	results := conn.SendBatch(ctx, batch)
	err := func() error {
		for range begin {
			if _, err := results.Exec(); err != nil {
				return err
			}
		}
		for _, s := range statements {
			rows, err := results.Query()
			if err != nil {
				return err
			}
			if err := s.read(rows); err != nil {
				return err
			}
		}
		return nil
	}()
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil && commit && !isRolledBack(err) {
		return unknown(err)
	}
	return err
}

// isPlain reports whether a transaction begins with BEGIN and nothing else.
func isPlain(begin []string) bool { return len(begin) == 1 && begin[0] == beginTogetherSQL }

// send sends it in a transaction of its own.
func (s *many) send(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, s.sql, s.args...)
	if err != nil {
		return err
	}
	return s.read(rows)
}

// read reads the answer.
func (s *many) read(rows pgx.Rows) error {
	defer rows.Close()
	one := statement{looks: s.looks, found: true}
	for rows.Next() {
		raw, fields := rows.RawValues(), rows.FieldDescriptions()
		nr := int64(0)
		if fields[0].Format == pgx.BinaryFormatCode {
			nr = int64(bits(raw[0])) //nolint:gosec // the same bits
		}
		if nr == 0 || !s.locks && !one.decodeFrom(fields[1:], raw[1:]) {
			dest := []any{&nr}
			if !s.locks {
				dest = append(dest, one.dest()...)
			}
			if err := rows.Scan(dest...); err != nil {
				return err
			}
		}
		switch {
		case s.rows == nil: // waitSQL
		case s.locks:
			s.rows[nr-1].locked = true
		case s.looks:
			r := s.rows[nr-1]
			r.found, r.left, r.at = one.answer.value.Valid, one.balance(), one.answer.at.UnixMicro()
		default:
			r := s.rows[max(nr, -nr)-1]
			r.taken, r.made, r.left = true, nr < 0, one.balance()
		}
	}
	return rows.Err()
}

// closed reports whether the row is closed, because the limit has shards.
func (r *standing) closed() bool { return r.found && isClosed(r.left.value) }
