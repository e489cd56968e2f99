package ratelimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The statements. TAKE grants, LOOK denies; why there are two of them and not one is told in protocol.go.
//
// Everything in SET and WHERE of ON CONFLICT is immutable and the clock stands in VALUES only: distributed engines take
// nothing else there. Every parameter is cast, so that the texts work in each of pgx's query modes. The arithmetic is that
// of algebra.go, in the same order.

const (
	// elapsed time in whole microseconds: date_part gives seconds in float8, which the rounding makes exact again
	bucketRefill = `$5 * greatest(0, round(date_part('epoch', excluded.ts - b.ts) * 1e6)) / $6`
	windowRefill = `$5 * greatest(0,
		floor(round(date_part('epoch', excluded.ts - $10::timestamptz) * 1e6) / $6) -
		floor(round(date_part('epoch', b.ts - $10::timestamptz) * 1e6) / $6))`

	// takeSQL takes count tokens: one row if granted, none if not.
	//
	// Locks: the row, also if nothing is granted. Predicate reads: none if granted (the arbiter index leads to the row);
	// the row if not. It waits for a concurrent transaction that holds the row and then decides on what that left, at READ
	// COMMITTED; above it, it fails with 40001.
	//
	// $1 name $2 key $3 shard $4 capacity $5 rate $6 period $7 count $8 least balance to leave $9 clock, null for the
	// database's $10 origin of windows, null for a bucket
	takeSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, $4::float8 - $7::float8, coalesce($9::timestamptz, clock_timestamp()),
	$4, $5::float8, $6::bigint, $10::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = least($4, b.value + {refill}) - $7,
	ts = greatest(b.ts, excluded.ts),
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
WHERE least($4, b.value + {refill}) - $7 >= $8::float8
RETURNING b.value, b.ts`

	// giveSQL gives count tokens back. It never lifts a balance above the capacity, nor lowers one that a larger rule
	// filled higher. Of a window they go back only while the row still stands in the window that they were taken from: the
	// take is then undone exactly, as what refills comes after. The clock has no part in it; it may have been read before
	// the statement waited for the row. Without a row the limit is full.
	//
	// Locks: the row. Predicate reads: none. An upsert and not an UPDATE: an UPDATE finds its row by whichever path the
	// planner likes, and a sequential scan takes a predicate lock on the whole table.
	//
	// $1 name $2 key $3 shard $4 capacity $5 rate $6 period $7 count $8 end of the window, null for none $9 clock $10 origin
	// $11 a full balance
	giveSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, $11::float8, coalesce($9::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $10::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = greatest(b.value, least($4, b.value + $7::float8))
WHERE $8::timestamptz IS NULL OR b.ts < $8::timestamptz
RETURNING b.value, b.ts`

	// resetSQL fills a balance, whatever the rule. It is the one statement that may move ts back: a row that a clock
	// set far ahead has left in the future is mended by it.
	//
	// Locks: the row. Predicate reads: none.
	//
	// $1 name $2 key $3 shard $4 capacity $5 rate $6 period $7 a full balance $8 clock $9 origin
	resetSQL = `INSERT INTO {schema}weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
VALUES ($1::text, $2::text, $3::integer, $7::float8, coalesce($8::timestamptz, clock_timestamp()),
	$4::float8, $5::float8, $6::bigint, $9::timestamptz)
ON CONFLICT (name, key, shard) DO UPDATE SET
	value = excluded.value, ts = excluded.ts,
	capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin
RETURNING b.value, b.ts`

	// lookSQL reads a balance: always one row, of nulls where there is no balance, with the clock beside it.
	//
	// Locks: none. Predicate reads: the row, or the index page where it would stand. The function forbids itself a
	// sequential scan: see the schema.
	//
	// $1 name $2 key $3 shard $4 clock
	lookSQL = `SELECT value, ts, at FROM {schema}weir_look($1::text, $2::text, $3::integer, $4::timestamptz)`

	// portableLookSQL is lookSQL without a server-side function.
	portableLookSQL = `SELECT b.value, b.ts, coalesce($4::timestamptz, clock_timestamp())
FROM (VALUES (1)) AS one LEFT JOIN {schema}weir_balance b ON b.name = $1::text AND b.key = $2::text AND b.shard = $3::integer`

	// lockSQL queues up for contended balances. LOCK TABLE takes no snapshot, so what follows it in the transaction sees
	// all that was committed while it waited.
	lockSQL = `LOCK TABLE {queues} IN SHARE ROW EXCLUSIVE MODE`
)

// statements are the texts for one schema.
type statements struct {
	prefix string

	takeBucket, takeWindow, give, reset, look string
}

func newStatements(schema string, portable bool) statements {
	s := statements{}
	if schema != "" {
		s.prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	text := func(sql, refill string) string {
		return strings.NewReplacer("{schema}", s.prefix, "{refill}", refill).Replace(sql)
	}
	s.takeBucket, s.takeWindow = text(takeSQL, bucketRefill), text(takeSQL, windowRefill)
	s.give, s.reset, s.look = text(giveSQL, ""), text(resetSQL, ""), text(lookSQL, "")
	if portable {
		s.look = text(portableLookSQL, "")
	}
	return s
}

// lock is the text that locks the given queues, which are in ascending order.
func (s *statements) lock(queues []int) string {
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = fmt.Sprintf("%sweir_queue_%d", s.prefix, q)
	}
	return strings.ReplaceAll(lockSQL, "{queues}", strings.Join(names, ", "))
}

// statement is one text on its way to the database, with room for the row that it answers with, if it answers with one.
type statement struct {
	sql    string
	args   []any
	c      *call // whose row it is about; nil for a statement that answers with none
	writes bool  // locks that row

	found bool
	value *float64
	ts    *time.Time
	at    *time.Time
}

// dest is where the columns of the answer go.
func (s *statement) dest() []any {
	if s.at == nil {
		return []any{&s.value, &s.ts}
	}
	return []any{&s.value, &s.ts, s.at}
}

// balance is the answer.
func (s *statement) balance() balance {
	if !s.found || s.value == nil || s.ts == nil {
		return balance{}
	}
	return balance{true, *s.value, s.ts.UnixMicro()}
}

func (c *call) originTime() any {
	if !c.windowed {
		return nil
	}
	return fromMicro(c.origin)
}

func (l *Limiter) takeOf(c *call) *statement {
	sql := l.sql.takeBucket
	if c.windowed {
		sql = l.sql.takeWindow
	}
	return &statement{c: c, writes: true, sql: sql, args: []any{c.name, c.key, c.shard, c.capacity, c.rate, c.period,
		c.count, c.least(), l.now(), c.originTime()}}
}

// giveOf gives back what c took.
func (l *Limiter) giveOf(c *call) *statement {
	var end any
	if c.windowed {
		end = fromMicro(c.windowStart(c.taken) + c.period)
	}
	return &statement{c: c, writes: true, sql: l.sql.give, args: []any{c.name, c.key, c.shard, c.capacity, c.rate, c.period,
		c.count, end, l.now(), c.originTime(), float64(full)}}
}

func (l *Limiter) resetOf(c *call) *statement {
	return &statement{c: c, writes: true, sql: l.sql.reset, args: []any{c.name, c.key, c.shard, c.capacity, c.rate, c.period,
		float64(full), l.now(), c.originTime()}}
}

func (l *Limiter) lookOf(c *call) *statement {
	return &statement{c: c, sql: l.sql.look, args: []any{c.name, c.key, c.shard, l.now()}, at: new(time.Time)}
}

// now is the set clock, or nil for the database's.
func (l *Limiter) now() any {
	if l.clock == nil {
		return nil
	}
	return l.clock()
}
