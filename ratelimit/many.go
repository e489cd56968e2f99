package ratelimit

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements over many rows at once, for callers that are decided together. Rows are in the order in which every call locks its
// own, by name and key. They are of limits without shards.
//
// $1 names $2 keys $3 capacities $4 rates $5 periods $6 origins, null for buckets
const (
	// manyRefill is by the rule that comes with the row.
	manyRefill = `CASE WHEN excluded.origin IS NULL
		THEN excluded.rate * greatest(0, round(date_part('epoch', excluded.ts - greatest(b.ts, b.paused_until)) * 1e6::float8)) / excluded.period::float8
		ELSE excluded.rate * greatest(0,
			floor(round(date_part('epoch', excluded.ts - excluded.origin) * 1e6::float8) / excluded.period::float8) -
			floor(round(date_part('epoch', greatest(b.ts, b.paused_until) - excluded.origin) * 1e6::float8) / excluded.period::float8)) END`

	// takeManySQL is takeSQL, of tokens that are there: each row that is in the answer is granted. The tokens to take are
	// those that the inserted row lacks.
	//
	// Locks: all rows. Predicate reads: those that are not granted.
	//
	// $7 tokens $8 clock
	takeManySQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
SELECT u.name, u.key, 0, u.capacity - u.count, coalesce($8::timestamptz, clock_timestamp()), u.capacity, u.rate, u.period, u.origin
FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[])
	AS u (name, key, capacity, rate, period, origin, count)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least(excluded.capacity, b.value + {refill}) - (excluded.capacity - excluded.value),
	ts = greatest(b.ts, excluded.ts),
	paused_until = CASE WHEN b.paused_until > excluded.ts THEN b.paused_until END,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least(excluded.capacity, b.value + {refill}) - (excluded.capacity - excluded.value) >= 0::float8
	AND (b.paused_until IS NULL OR b.paused_until <= excluded.ts)
RETURNING b.name, b.key, ` + columns

	// lookManySQL is lookSQL: a row for each, in any order.
	//
	// $1 names $2 keys $3 clock
	lookManySQL = `SELECT u.name, u.key, ` + columns + `, coalesce($3::timestamptz, clock_timestamp())
FROM unnest($1::text[], $2::text[]) AS u (name, key)
LEFT JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0`

	// lockManySQL locks the rows that there are, in order, and reads them. The clock is read by clockSQL after it: here it might
	// be read before a row was waited for.
	//
	// $1 names $2 keys
	lockManySQL = `SELECT b.name, b.key, ` + columns + `
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nr)
JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
ORDER BY u.nr FOR NO KEY UPDATE OF b`

	// freeManySQL answers with the rows that nobody holds.
	//
	// $1 names $2 keys
	freeManySQL = `SELECT b.name, b.key, ` + columns + `
FROM unnest($1::text[], $2::text[]) AS u (name, key)
JOIN {schema}weir_balance b ON b.name = u.name AND b.key = u.key AND b.shard = 0
FOR NO KEY UPDATE OF b SKIP LOCKED`

	clockSQL = `SELECT coalesce($1::timestamptz, clock_timestamp())`

	// putManySQL writes what takes have left of rows that are locked, and newManySQL of those that there were not: if there is one
	// now, it fails.
	//
	// $7 values $8 times $9 ends of pauses, or null
	putManySQL = newManySQL + `
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts, paused_until = excluded.paused_until,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin`

	newManySQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin, paused_until)
SELECT u.name, u.key, 0, u.value, u.ts, u.capacity, u.rate, u.period, u.origin, u.paused
FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::timestamptz[], $7::float8[], $8::timestamptz[], $9::timestamptz[])
	AS u (name, key, capacity, rate, period, origin, value, ts, paused)`
)

// manyTexts are the texts for one schema.
type manyTexts struct{ take, look, lock, free, clock, put, new string }

func newManyTexts(prefix string) manyTexts {
	r := strings.NewReplacer("{schema}", prefix, "{refill}", manyRefill)
	return manyTexts{r.Replace(takeManySQL), r.Replace(lookManySQL), r.Replace(lockManySQL), r.Replace(freeManySQL), clockSQL, r.Replace(putManySQL), r.Replace(newManySQL)}
}

// many is one such statement on its way.
type many struct {
	sql  string
	args []any
	// What it answers with, if anything.
	rows  []*standing
	clock *time.Time
}

// standing is a row, the callers who want tokens of it, and what the database said of it.
type standing struct {
	c       *call // of the first of them: the place and the rule
	waiters []*waiter
	count   float64 // of all of them
	found   bool
	left    balance
	at      int64 // the clock of a look
	changed bool
}

// columnsOfRules are $1 to $6.
func columnsOfRules(rows []*standing, more ...any) []any {
	n := len(rows)
	names, keys := make([]string, n), make([]string, n)
	capacities, rates, periods := make([]float64, n), make([]float64, n), make([]int64, n)
	origins := make([]pgtype.Timestamptz, n)
	for i, r := range rows {
		c := r.c
		names[i], keys[i], capacities[i], rates[i], periods[i] = c.name, c.key, c.capacity, c.rate, c.period
		if c.windowed {
			origins[i] = pgtype.Timestamptz{Time: fromMicro(c.origin), Valid: true}
		}
	}
	return append([]any{names, keys, capacities, rates, periods, origins}, more...)
}

func (l *Limiter) takeMany(rows []*standing) *many {
	counts := make([]float64, len(rows))
	for i, r := range rows {
		r.found, counts[i] = false, r.count
	}
	return &many{sql: l.many.take, args: columnsOfRules(rows, counts, l.now()), rows: rows}
}

func (l *Limiter) lookMany(rows []*standing) *many {
	return &many{sql: l.many.look, args: append(places(rows), l.now()), rows: rows}
}

func (l *Limiter) freeMany(rows []*standing) *many {
	return &many{sql: l.many.free, args: places(rows), rows: rows}
}

// lockMany are two statements: the second reads the clock.
func (l *Limiter) lockMany(rows []*standing, clock *time.Time) []*many {
	return []*many{
		{sql: l.many.lock, args: places(rows), rows: rows},
		{sql: l.many.clock, args: []any{l.now()}, clock: clock},
	}
}

func places(rows []*standing) []any {
	names, keys := make([]string, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		r.found, names[i], keys[i] = false, r.c.name, r.c.key
	}
	return []any{names, keys}
}

// putMany writes the rows that have changed.
func (l *Limiter) putMany(rows []*standing) []*many {
	var there, missing []*standing
	for _, r := range rows {
		switch {
		case !r.changed:
		case r.found:
			there = append(there, r)
		default:
			missing = append(missing, r)
		}
	}
	var statements []*many
	put := func(sql string, rows []*standing) {
		if len(rows) == 0 {
			return
		}
		values, times := make([]float64, len(rows)), make([]time.Time, len(rows))
		pauses := make([]pgtype.Timestamptz, len(rows))
		for i, r := range rows {
			values[i], times[i] = r.left.value, fromMicro(r.left.ts)
			if r.left.pausedUntil != open {
				pauses[i] = pgtype.Timestamptz{Time: fromMicro(r.left.pausedUntil), Valid: true}
			}
		}
		statements = append(statements, &many{sql: sql, args: columnsOfRules(rows, values, times, pauses)})
	}
	put(l.many.put, there)
	put(l.many.new, missing)
	return statements
}

// roundTrip runs statements on a connection, in one round trip.
func roundTrip(ctx context.Context, conn *pgxpool.Conn, begin []string, commit bool, statements ...*many) error {
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

// read reads the answer.
func (s *many) read(rows pgx.Rows) error {
	defer rows.Close()
	next := 0
	for rows.Next() {
		if s.clock != nil {
			if err := rows.Scan(s.clock); err != nil {
				return err
			}
			continue
		}
		raw := rows.RawValues()
		// The answers come in the order of the rows, without those that have none. A look's may be joined in any.
		for looked := 0; string(raw[1]) != s.rows[next].c.key || string(raw[0]) != s.rows[next].c.name; looked++ {
			if next++; next == len(s.rows) {
				next = 0
			}
			if looked == len(s.rows) {
				return errors.New("the database has answered for a row that it was not asked for")
			}
		}
		if err := s.rows[next].read(rows, raw); err != nil {
			return err
		}
	}
	return rows.Err()
}

// read reads one row of the answer.
func (r *standing) read(rows pgx.Rows, raw [][]byte) error {
	s := statement{looks: len(raw) == 8}
	if !s.decodeFrom(rows.FieldDescriptions()[2:], raw[2:]) {
		var name, key string
		if err := rows.Scan(append([]any{&name, &key}, s.dest()...)...); err != nil {
			return err
		}
	}
	s.found = true
	r.found, r.left = s.answer.value.Valid, s.balance()
	if s.looks {
		r.at = s.answer.at.UnixMicro()
	}
	return nil
}

// closed reports that the limit has got shards.
func (r *standing) closed() bool { return r.found && math.IsInf(r.left.value, -1) }
