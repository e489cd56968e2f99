package slots

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/pgerr"
)

// Each statement is a transaction of its own, READ COMMITTED whatever the server's default. Each
// sees all that was committed before it. If another transaction has locked a row, the statement
// waits for that transaction to end, and checks the row again.
const (
	// acquireSQL takes a slot, if fewer than n are held. It chooses the number of a free slot. If
	// two callers choose the same number, the primary key lets one have it, and the other takes
	// none. If all slots are held, nothing is written.
	//
	// Held slots with the number n or a higher one were granted when the limit had more slots.
	// Counting them with the others is right only under the lock of leftSQL. Without that lock
	// nothing is granted as long as there are any.
	//
	// The token is the clock's time in microseconds, or one more than the slot's last token if that
	// is more. So it grows even if clocks differ, and needs no sequence that all callers share.
	acquireSQL = `
WITH{bound} ` + free + `, got AS (
	INSERT INTO {schema}weir_slot AS s (name, key, slot, holder, until, token)
	SELECT $2::text, $3::text, free.i, $7::text::uuid,
		coalesce($1::timestamptz, statement_timestamp()) + $8::bigint::float8 * interval '1 microsecond',
		round(date_part('epoch', coalesce($1::timestamptz, statement_timestamp())) * 1e6::float8)::bigint FROM free
	{granted}
)
SELECT got.slot, got.token, (SELECT count(*) FROM live), EXISTS (SELECT FROM live WHERE slot >= $4::integer)
FROM (SELECT 1) AS always LEFT JOIN got ON true`

	// free chooses the number of a free slot.
	free = `live AS MATERIALIZED (
	SELECT s.slot FROM {schema}weir_slot AS s
	WHERE s.name = $2::text AND s.key = $3::text AND s.until > coalesce($1::timestamptz, statement_timestamp())
), free AS (
	SELECT i FROM generate_series(0, $4::integer - 1) AS i{in_line}
	WHERE (SELECT count(*) FROM live) < $4::integer AND i NOT IN (SELECT slot FROM live)
		AND ($5::boolean OR NOT EXISTS (SELECT FROM live WHERE slot >= $4::integer))
	ORDER BY i < $6::integer, i LIMIT 1
)`

	// bound sets the same lock_timeout as inLineSQL, within acquireSQL, which saves a statement. A
	// row of free exists only once set_config was called, so the insertion cannot wait longer.
	bound = ` in_line AS MATERIALIZED (SELECT set_config('lock_timeout', '250', true)),`

	// granted takes over the slot's row, if it exists, unless somebody else holds the slot.
	granted = `ON CONFLICT (name, key, slot) DO UPDATE SET
		holder = excluded.holder, until = excluded.until, token = greatest(s.token + 1, excluded.token)
	WHERE round(date_part('epoch', excluded.until - s.until) * 1e6::float8) >= {ttl}::bigint::float8
	RETURNING s.slot, s.token`

	// findSQL and takeSQL do the same as acquireSQL in two statements, for Citus. Citus would send
	// the reads of acquireSQL to all nodes; each of these two runs on the node of the key alone.
	// Both get the time that clockSQL has read. Otherwise Citus would read the clock of one node
	// for findSQL and that of another for takeSQL.
	//
	// They are sent without BEGIN, unless leftSQL comes first: at any isolation level takeSQL takes
	// a slot that nobody else has, or none.
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

	// leftSQL locks the row with the lowest number that is n or higher. It runs before acquireSQL
	// in the same transaction. So callers that count slots with such numbers take turns, as long as
	// there are any.
	leftSQL = `
SELECT 1 FROM {schema}weir_slot WHERE name = $1::text AND key = $2::text AND slot >= $3::integer ORDER BY slot LIMIT 1 FOR UPDATE`

	// mine joins the rows of the slots that this process holds, by the primary key. A slot that was
	// granted to another process meanwhile has another holder, and does not match.
	mine = `unnest({lists}) AS mine (name, key, slot, holder)
WHERE s.name = mine.name AND s.key = mine.key AND s.slot = mine.slot AND s.holder = mine.holder::uuid{one}`

	// renewal is the time, and until when a slot is renewed at it.
	renewal = `clock AS MATERIALIZED (
	SELECT c.now, c.now + $2::bigint::float8 * interval '1 microsecond' AS until
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
)`

	// renewSQL renews the slots that have not expired, and returns their holders, and true.
	renewSQL = `
WITH ` + renewal + `
UPDATE {schema}weir_slot AS s SET until = clock.until
FROM clock, {mine} AND s.until > clock.now
RETURNING s.holder::text, true`

	// renewFreeSQL is renewSQL without the rows that other transactions have locked. So a row that is
	// locked for long does not cost a process its other slots. It returns the holders of all slots
	// that have not expired, and whether each was renewed.
	renewFreeSQL = `
WITH ` + renewal + `, held AS MATERIALIZED (
	SELECT s.holder FROM clock, {schema}weir_slot AS s, {mine} AND s.until > clock.now
), free AS MATERIALIZED (
	SELECT s.name, s.key, s.slot FROM {schema}weir_slot AS s, {mine} FOR UPDATE OF s SKIP LOCKED
), renewed AS (
	UPDATE {schema}weir_slot AS s SET until = clock.until
	FROM clock, free WHERE s.name = free.name AND s.key = free.key AND s.slot = free.slot AND s.until > clock.now
	RETURNING s.holder
)
SELECT holder::text, holder IN (SELECT holder FROM renewed) FROM held`

	// releaseSQL frees slots. It does not delete their rows, which have the last tokens.
	releaseSQL = `
UPDATE {schema}weir_slot AS s SET until = 'epoch' FROM {mine}`

	// tidySQL frees the slot of a call whose answer was lost: the call may have been committed.
	tidySQL = `
UPDATE {schema}weir_slot SET until = 'epoch' WHERE name = $1::text AND key = $2::text AND holder = $3::text::uuid`
)

type statements struct {
	acquire, acquireBound, find, take, left, tidy, claim, renewFree string
	renew, release, count                                           byKeys
	twoPhase                                                        string // a table: see spreadSQL
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
		acquire:      text(acquireSQL, "{ttl}", "$8", "{bound}", "", "{in_line}", ""),
		acquireBound: text(acquireSQL, "{ttl}", "$8", "{bound}", bound, "{in_line}", ", in_line"),
		find:         text(findSQL, "{in_line}", ""),
		take:         text(takeSQL, "{ttl}", "$6"),
		left:         text(leftSQL),
		tidy:         text(tidySQL),
		claim:        text(claimSQL),
		renewFree:    text(renewFreeSQL, "{lists}", "$3::text[], $4::text[], $5::integer[], $6::text[]", "{one}", ""),
		renew:        keys(renewSQL, "$3::text[], $4::text[], $5::integer[], $6::text[]", "$7"),
		release:      keys(releaseSQL, "$1::text[], $2::text[], $3::integer[], $4::text[]", "$5"),
		count:        keys(countSQL, "", "$4"),
		twoPhase:     prefix + "weir_two_phase",
	}
}

type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// trip runs statements as one transaction, in one round trip. They are committed if there is no
// error. After an error the pool closes the connection, as its transaction was not ended.
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
		// An error after the answer to COMMIT is not about the transaction. Postgres may report a
		// statement_timeout late that fired just before COMMIT was done.
		return nil
	}
	return err
}

// inLineSQL bounds how long acquireSQL waits for somebody who has locked a row, as a caller that
// has left cannot take back its connection before. A row that another caller is just taking is free
// again long before that. It is sent only ahead of leftSQL, which may wait, too: see bound.
const inLineSQL = "SET LOCAL lock_timeout = 250"

// answer is the row that acquireSQL returns.
type answer struct {
	slot  *int32 // nil if no slot was taken
	token *int64
	live  int64 // how many slots were held before
	left  bool  // slots with the number n or a higher one are held
}

// acquire runs acquireSQL once on a connection. sent is false if it fails before it sends that.
func (s *Slots) acquire(
	ctx context.Context, conn *pgxpool.Conn, w *want, holder string, locked bool,
) (a answer, sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return a, false, err
	}
	// a later answer is useless: the slot has expired
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
			b.Queue(inLineSQL)
			b.Queue(s.sql.left, w.name, w.key, w.n)
		}
		b.Queue(s.sql.acquireBound, s.clock(), w.name, w.key, w.n, locked, rand.IntN(w.n), holder,
			s.ttl.Microseconds()).
			QueryRow(func(row pgx.Row) error {
				return row.Scan(&a.slot, &a.token, &a.live, &a.left)
			})
	})
	return a, true, err
}

// acquireOn runs acquireSQL, or findSQL and takeSQL. If locked is set, q must be a transaction:
// leftSQL runs first.
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
	if errors.Is(err, pgx.ErrNoRows) { // another caller was faster
		err = nil
	}
	return a, err
}

// renew renews slots. It returns the holders of those that are still held, and whether it has
// renewed them: it has, but with free those whose rows are locked.
func (s *Slots) renew(
	ctx context.Context, slots []*slot, free bool,
) (renewed map[string]bool, err error) {
	names, keys, numbers, holders := lists(slots)
	args := []any{s.clock(), s.ttl.Microseconds(), names, keys, numbers, holders}
	sql := s.sql.renewFree
	if !free {
		sql, args = s.sql.renew.of(keys, args...)
	}
	err = s.trip(ctx, s.pool, func(b *pgx.Batch) {
		b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
			renewed = make(map[string]bool, len(slots))
			var holder string
			var ok bool
			_, err := pgx.ForEachRow(rows, []any{&holder, &ok}, func() error {
				renewed[holder] = ok
				return nil
			})
			return err
		})
	})
	return renewed, err
}

// giveBack frees slots in the database, except those that have another holder by now.
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

// clock returns the time of Config.Clock, or nil for the database's.
func (s *Slots) clock() any {
	if s.now == nil {
		return nil
	}
	return s.now().Truncate(time.Microsecond)
}

// isLostRace reports whether a concurrent transaction made this one fail. Then it may succeed if it
// is sent again at once.
func isLostRace(err error) bool {
	state := pgerr.State(err)
	return state == "40001" || state == "40P01" // serialization_failure, deadlock_detected
}
