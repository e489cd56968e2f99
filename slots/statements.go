package slots

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Each of these is a transaction of its own, READ COMMITTED whatever the server's default: each
// sees what was committed before it, and who meets another's row waits for that one's commit and
// looks again.
const (
	// acquireSQL takes a slot, if fewer than n are held. It writes a number that it has seen free;
	// whoever is faster has the row, by the primary key, and then this takes none. Nothing is
	// written where all are held. Slots with numbers from n on are held by those who were granted
	// them by a larger n: to count them with the others is right only under the lock of leftSQL, so
	// without it nothing is granted as long as there are any.
	//
	// The token is the microseconds of the clock, or one more than the last of the slot if that is
	// more. So it grows wherever the clock is read, and without a number that all have to draw
	// from.
	acquireSQL = `
WITH live AS MATERIALIZED (
	SELECT s.slot FROM {schema}weir_slot AS s
	WHERE s.name = $2::text AND s.key = $3::text AND s.until > coalesce($1::timestamptz, statement_timestamp())
), free AS (
	SELECT i FROM generate_series(0, $4::integer - 1) AS i
	WHERE (SELECT count(*) FROM live) < $4::integer AND i NOT IN (SELECT slot FROM live)
		AND ($5::boolean OR NOT EXISTS (SELECT FROM live WHERE slot >= $4::integer))
	ORDER BY i < $6::integer, i LIMIT 1
), got AS (
	INSERT INTO {schema}weir_slot AS s (name, key, slot, holder, until, token)
	SELECT $2::text, $3::text, free.i, $7::text::uuid,
		coalesce($1::timestamptz, statement_timestamp()) + $8::bigint::float8 * interval '1 microsecond',
		round(date_part('epoch', coalesce($1::timestamptz, statement_timestamp())) * 1e6::float8)::bigint FROM free
	ON CONFLICT (name, key, slot) DO UPDATE SET
		holder = excluded.holder, until = excluded.until, token = greatest(s.token + 1, excluded.token)
	WHERE round(date_part('epoch', excluded.until - s.until) * 1e6::float8) >= $8::bigint::float8
	RETURNING s.slot, s.token
)
SELECT got.slot, got.token, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN got ON true`

	// leftSQL locks the lowest row with a number from n on. It goes before acquireSQL in one
	// transaction: those who count what a larger n has left come one after the other, as long as
	// there is any.
	leftSQL = `
SELECT 1 FROM {schema}weir_slot WHERE name = $1::text AND key = $2::text AND slot >= $3::integer ORDER BY slot LIMIT 1 FOR UPDATE`

	// mine are the rows of a list of holdings, by the primary key. What was given to others
	// meanwhile has another holder.
	mine = `unnest({lists}) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid`

	// renewSQL renews what has not run out, and says what that is.
	renewSQL = `
WITH clock AS MATERIALIZED (
	SELECT c.now, c.now + $2::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
)
UPDATE {schema}weir_slot AS s SET until = clock.until
FROM clock, {mine} AND s.until > clock.now
RETURNING s.holder::text`

	// releaseSQL leaves the rows, for the sake of their tokens.
	releaseSQL = `
UPDATE {schema}weir_slot AS s SET until = 'epoch' FROM {mine}`

	// tidySQL gives back what a call may have taken whose answer did not come.
	tidySQL = `
UPDATE {schema}weir_slot SET until = 'epoch' WHERE name = $1::text AND key = $2::text AND holder = $3::text::uuid`

	heldSQL = `
SELECT count(*) FROM {schema}weir_slot
WHERE name = $2::text AND key = $3::text AND until > coalesce($1::timestamptz, clock_timestamp())`
)

type statements struct {
	acquire, left, renew, release, tidy, held string
	claim, count                              string // for jobs
}

func newStatements(schema string) statements {
	prefix := ""
	if schema != "" {
		prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	text := func(sql, lists string) string {
		return strings.NewReplacer("{schema}", prefix).Replace(
			strings.ReplaceAll(strings.ReplaceAll(sql, "{mine}", mine), "{lists}", lists))
	}
	return statements{
		acquire: text(acquireSQL, ""),
		left:    text(leftSQL, ""),
		renew:   text(renewSQL, "$3::text[], $4::text[], $5::integer[], $6::text[]"),
		release: text(releaseSQL, "$1::text[], $2::text[], $3::integer[], $4::text[]"),
		tidy:    text(tidySQL, ""),
		held:    text(heldSQL, ""),
		claim:   text(claimSQL, ""),
		count:   text(countSQL, ""),
	}
}

type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// trip runs statements as one transaction, in one round trip. They are committed if there is no
// error. A connection that fails within is one that the pool closes.
func (s *Slots) trip(ctx context.Context, to batchSender, queue func(*pgx.Batch)) error {
	batch, committed := &pgx.Batch{}, false
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	queue(batch)
	batch.Queue("COMMIT").Exec(func(pgconn.CommandTag) error {
		committed = true
		return nil
	})
	err := to.SendBatch(ctx, batch).Close()
	if committed {
		// What comes after the answer to COMMIT is not about the transaction: a statement_timeout
		// that was over just before is told just after it.
		return nil
	}
	return err
}

// answer is what acquireSQL says.
type answer struct {
	slot  *int32
	token *int64
	live  int64
	left  bool // slots with numbers from n on are held
}

// acquire runs acquireSQL once, if it comes to send it.
func (s *Slots) acquire(
	ctx context.Context, w *want, holder string, locked bool,
) (a answer, sent bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return a, false, err
	}
	defer conn.Release()
	if err := ctx.Err(); err != nil {
		return a, false, err
	}
	// what comes later is of no use
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ttl)
	defer cancel()
	err = s.trip(ctx, conn, func(b *pgx.Batch) {
		if locked {
			b.Queue(s.sql.left, w.name, w.key, w.n)
		}
		b.Queue(s.sql.acquire, s.clock(), w.name, w.key, w.n, locked, rand.IntN(w.n), holder,
			s.ttl.Microseconds()).
			QueryRow(func(row pgx.Row) error {
				return row.Scan(&a.slot, &a.token, &a.live, &a.left)
			})
	})
	return a, true, err
}

// renew renews slots, and returns the holders of those that are.
func (s *Slots) renew(ctx context.Context, slots []*slot) (renewed map[string]bool, err error) {
	err = s.trip(ctx, s.pool, func(b *pgx.Batch) {
		b.Queue(s.sql.renew, append([]any{s.clock(), s.ttl.Microseconds()}, lists(slots)...)...).
			Query(func(rows pgx.Rows) error {
				holders, err := pgx.CollectRows(rows, pgx.RowTo[string])
				renewed = make(map[string]bool, len(holders))
				for _, h := range holders {
					renewed[h] = true
				}
				return err
			})
	})
	return renewed, err
}

// giveBack frees slots, as far as they are still these.
func (s *Slots) giveBack(ctx context.Context, slots []*slot) error {
	return s.trip(ctx, s.pool, func(b *pgx.Batch) { b.Queue(s.sql.release, lists(slots)...) })
}

func lists(slots []*slot) []any {
	n := len(slots)
	names, keys, numbers, holders := make([]string, n), make([]string, n), make([]int32, n),
		make([]string, n)
	for i, sl := range slots {
		names[i], keys[i], numbers[i], holders[i] = sl.Limit, sl.Key, int32(sl.Number), sl.holder //nolint:gosec // it was an int32
	}
	return []any{names, keys, numbers, holders}
}

// clock is the instant that stands in for the database's, or nil.
func (s *Slots) clock() any {
	if s.now == nil {
		return nil
	}
	return s.now().Truncate(time.Microsecond)
}

// isLostRace reports whether another attempt may succeed, at once.
func isLostRace(err error) bool {
	state := stateOf(err)
	return state == "40001" || state == "40P01" // serialization_failure, deadlock_detected
}
