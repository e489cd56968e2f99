package slots

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/pgerr"
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
WITH ` + free + `, got AS (
	INSERT INTO {schema}weir_slot AS s (name, key, slot, holder, until, token)
	SELECT $2::text, $3::text, free.i, $7::text::uuid,
		coalesce($1::timestamptz, statement_timestamp()) + $8::bigint::float8 * interval '1 microsecond',
		round(date_part('epoch', coalesce($1::timestamptz, statement_timestamp())) * 1e6::float8)::bigint FROM free
	{granted}
)
SELECT got.slot, got.token, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN got ON true`

	// free finds a number for acquireSQL.
	free = `live AS MATERIALIZED (
	SELECT s.slot FROM {schema}weir_slot AS s
	WHERE s.name = $2::text AND s.key = $3::text AND s.until > coalesce($1::timestamptz, statement_timestamp())
), free AS (
	SELECT i FROM generate_series(0, $4::integer - 1) AS i
	WHERE (SELECT count(*) FROM live) < $4::integer AND i NOT IN (SELECT slot FROM live)
		AND ($5::boolean OR NOT EXISTS (SELECT FROM live WHERE slot >= $4::integer))
	ORDER BY i < $6::integer, i LIMIT 1
)`

	// granted writes the row, unless somebody else has it.
	granted = `ON CONFLICT (name, key, slot) DO UPDATE SET
		holder = excluded.holder, until = excluded.until, token = greatest(s.token + 1, excluded.token)
	WHERE round(date_part('epoch', excluded.until - s.until) * 1e6::float8) >= {ttl}::bigint::float8
	RETURNING s.slot, s.token`

	// findSQL and takeSQL are acquireSQL in two statements, for Citus: it would send what acquireSQL
	// reads to all nodes, and each of the two runs on the node of the key. Their clock is that of
	// clockSQL: Citus reads that of another node for findSQL than for what writes rows. They are
	// sent without BEGIN, unless leftSQL comes first: at any isolation takeSQL takes a slot that
	// nobody else has, or none.
	findSQL = `
WITH ` + free + `
SELECT free.i, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN free ON true`

	clockSQL = `SELECT statement_timestamp()`

	takeSQL = `
INSERT INTO {schema}weir_slot AS s (name, key, slot, holder, until, token)
VALUES ($2::text, $3::text, $4::integer, $5::text::uuid,
	$1::timestamptz + $6::bigint::float8 * interval '1 microsecond',
	round(date_part('epoch', $1::timestamptz) * 1e6::float8)::bigint)
{granted}`

	// leftSQL locks the lowest row with a number from n on. It goes before acquireSQL in one
	// transaction: those who count what a larger n has left come one after the other, as long as
	// there is any.
	leftSQL = `
SELECT 1 FROM {schema}weir_slot WHERE name = $1::text AND key = $2::text AND slot >= $3::integer ORDER BY slot LIMIT 1 FOR UPDATE`

	// mine are the rows of a list of holdings, by the primary key. What was given to others
	// meanwhile has another holder.
	mine = `unnest({lists}) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid{one}`

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
	acquire, find, take, left, tidy, held, claim string
	renew, release, count                        byKeys
	twoPhase                                     string // a table: see spreadSQL
}

func newStatements(schema string) statements {
	prefix := ""
	if schema != "" {
		prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	text := func(sql string, fill ...string) string {
		sql = strings.NewReplacer("{mine}", mine, "{granted}", granted).Replace(sql)
		return strings.NewReplacer(append(fill, "{schema}", prefix)...).Replace(sql)
	}
	keys := func(sql, lists, key string) byKeys {
		return byKeys{text(sql, "{lists}", lists, "{one}", ""),
			text(sql, "{lists}", lists, "{one}", " AND s.key = "+key+"::text")}
	}
	return statements{
		acquire:  text(acquireSQL, "{ttl}", "$8"),
		find:     text(findSQL),
		take:     text(takeSQL, "{ttl}", "$6"),
		left:     text(leftSQL),
		tidy:     text(tidySQL),
		held:     text(heldSQL),
		claim:    text(claimSQL),
		renew:    keys(renewSQL, "$3::text[], $4::text[], $5::integer[], $6::text[]", "$7"),
		release:  keys(releaseSQL, "$1::text[], $2::text[], $3::integer[], $4::text[]", "$5"),
		count:    keys(countSQL, "", "$4"),
		twoPhase: prefix + "weir_two_phase",
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
		// An error after the answer to COMMIT is not about the transaction: Postgres may report a
		// statement_timeout late, which ended just before it.
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
	switch spread, err := s.isSpread(ctx, conn); {
	case err != nil:
		return a, false, err
	case spread && locked:
		err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
			func(tx pgx.Tx) (err error) {
				a, err = s.acquireOn(ctx, tx, w, holder, locked, s.ttl)
				return err
			})
		return a, true, err
	case spread:
		a, err = s.acquireOn(ctx, conn, w, holder, locked, s.ttl)
		return a, true, err
	}
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

// acquireOn runs acquireSQL, or findSQL and takeSQL, on a connection or, if locked, in a transaction.
func (s *Slots) acquireOn(
	ctx context.Context, q hand.Querier, w *want, holder string, locked bool, ttl time.Duration,
) (a answer, err error) {
	if locked {
		if _, err := q.Exec(ctx, s.sql.left, w.name, w.key, w.n); err != nil {
			return a, err
		}
	}
	at := s.clock()
	spread, err := s.isSpread(ctx, q)
	if spread && at == nil {
		var now time.Time
		err = q.QueryRow(ctx, clockSQL).Scan(&now)
		at = now
	}
	if err != nil {
		return a, err
	}
	look := []any{at, w.name, w.key, w.n, locked, rand.IntN(w.n)}
	if !spread {
		err = q.QueryRow(ctx, s.sql.acquire, append(look, holder, ttl.Microseconds())...).
			Scan(&a.slot, &a.token, &a.live, &a.left)
		return a, err
	}
	var free *int32
	err = q.QueryRow(ctx, s.sql.find, look...).Scan(&free, &a.live, &a.left)
	if err != nil || free == nil {
		return a, err
	}
	err = q.QueryRow(ctx, s.sql.take, at, w.name, w.key, *free, holder, ttl.Microseconds()).
		Scan(&a.slot, &a.token)
	if errors.Is(err, pgx.ErrNoRows) { // somebody was faster
		err = nil
	}
	return a, err
}

// renew renews slots, and returns the holders of those that are.
func (s *Slots) renew(ctx context.Context, slots []*slot) (renewed map[string]bool, err error) {
	names, keys, numbers, holders := lists(slots)
	sql, args := s.sql.renew.of(keys, s.clock(), s.ttl.Microseconds(), names, keys, numbers, holders)
	err = s.trip(ctx, s.pool, func(b *pgx.Batch) {
		b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
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
	names, keys, numbers, holders := lists(slots)
	sql, args := s.sql.release.of(keys, names, keys, numbers, holders)
	return s.trip(ctx, s.pool, func(b *pgx.Batch) { b.Queue(sql, args...) })
}

func lists(slots []*slot) (names, keys []string, numbers []int32, holders []string) {
	for _, sl := range slots {
		names, keys = append(names, sl.Limit), append(keys, sl.Key)
		numbers, holders = append(numbers, int32(sl.Number)), append(holders, sl.holder) //nolint:gosec // it was an int32
	}
	return names, keys, numbers, holders
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
	state := pgerr.State(err)
	return state == "40001" || state == "40P01" // serialization_failure, deadlock_detected
}
