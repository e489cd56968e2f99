package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// store is the application's database: a schema of its own, so that the demo may run on a database
// in use.
type store struct {
	pool   *pgxpool.Pool
	schema string
}

const messages = `CREATE TABLE message (
	id          text PRIMARY KEY,
	tenant      text NOT NULL,
	saved_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
	reservation uuid NOT NULL,   -- of the call that is to be made, or was made last
	reserved    float8 NOT NULL, -- tokens, for all calls that were made: one that fails keeps its own
	planned_at  timestamptz,     -- reserved ahead: when the job was to start if all used what they had reserved
	due_at      timestamptz,     -- when it was to in the end
	started_at  timestamptz,     -- when it first did
	settled_at  timestamptz,     -- from here on: with the answer
	used        int,             -- tokens, as the API says
	given_back  float8,          -- of what the answered call had reserved; below 0: charged beyond
	answer      text
)`

// open makes the schema and all that is in it: the application's table, Weir's and River's.
func open(ctx context.Context, url string) (_ *store, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	s := &store{schema: "weir_demo_llm_" + strings.ToLower(rand.Text()[:8])}
	cfg.MaxConns = 30
	cfg.ConnConfig.RuntimeParams["search_path"] = s.schema
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := schema.Migrate(ctx, s.pool, schema.In(s.schema)); err != nil {
		return nil, err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool),
		&rivermigrate.Config{Logger: quiet(), Schema: s.schema})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	if _, err := s.pool.Exec(ctx, messages); err != nil {
		return nil, err
	}
	return s, nil
}

// close drops the schema.
func (s *store) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.pool.Exec(
		ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{s.schema}.Sanitize()+" CASCADE",
	)
	s.pool.Close()
	if err != nil {
		return fmt.Errorf("drop schema %s: %w", s.schema, err)
	}
	return nil
}

// counts are for the progress.
type counts struct {
	saved, reserved, started, answered int
}

func (s *store) counts(ctx context.Context) (c counts, err error) {
	err = s.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE planned_at IS NOT NULL), 
		count(*) FILTER (WHERE started_at IS NOT NULL), count(*) FILTER (WHERE answer IS NOT NULL) FROM message`).
		Scan(&c.saved, &c.reserved, &c.started, &c.answered)
	return c, err
}

// start notes that the call of a reservation of so many tokens begins. Another than the one noted
// was charged anew, after a call that has failed.
func (s *store) start(
	ctx context.Context, id string, reservation uuid.UUID, tokens float64, due time.Time,
) error {
	_, err := s.pool.Exec(ctx,
		`UPDATE message SET due_at = coalesce(due_at, $2), started_at = coalesce(started_at, clock_timestamp()),
		reserved = reserved + CASE reservation WHEN $3 THEN 0 ELSE $4::float8 END, reservation = $3 WHERE id = $1`,
		id, due, reservation, tokens)
	return err
}

// save notes the answer, and what its call has used and given back. It is for the transaction that
// settles.
func (s *store) save(
	ctx context.Context, tx pgx.Tx, id, answer string, used int, givenBack float64,
) error {
	_, err := tx.Exec(ctx, `UPDATE message SET answer = $2, used = $3, given_back = $4, settled_at = clock_timestamp() WHERE id = $1`,
		id, answer, used, givenBack)
	return err
}

// lateness returns by how much the reserved messages started after, or before, they were due.
func (s *store) lateness(ctx context.Context) ([]time.Duration, error) {
	rows, err := s.pool.Query(ctx,
		`SELECT (extract(epoch FROM started_at - due_at) * 1e6)::bigint FROM message
		WHERE planned_at IS NOT NULL AND started_at IS NOT NULL ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (time.Duration, error) {
		var us int64
		err := row.Scan(&us)
		return time.Duration(us) * time.Microsecond, err
	})
}

// books are the sums of tokens: reserved = used + givenBack - charged + kept.
type books struct {
	reserved, used, givenBack, charged float64
	kept                               float64 // by calls that have failed

	earlier time.Duration // than planned, on average: what is reserved ahead has started
	share   float64       // see booksSQL
}

// booksSQL has in its last column how much of the budget was used while there was always something
// that waited, from when the first tokens were there to the start of the last job that had been
// reserved ahead: the tokens used by the calls that were answered in that time, as a share of those
// that the limit let flow in and of its capacity, with which it began.
const booksSQL = `WITH span AS (
	SELECT min(least(started_at, due_at, CASE WHEN planned_at IS NULL THEN saved_at END)) AS first,
		max(started_at) FILTER (WHERE planned_at IS NOT NULL) AS last FROM message
), sums AS (
	SELECT sum(reserved) AS reserved, sum(used)::float8 AS used,
		coalesce(sum(given_back) FILTER (WHERE given_back > 0::float8), 0) AS given_back,
		coalesce(sum(-given_back) FILTER (WHERE given_back < 0::float8), 0) AS charged,
		sum(reserved - used::float8 - given_back) AS kept,
		(coalesce(avg(extract(epoch FROM planned_at - started_at)), 0) * 1e6)::bigint AS earlier,
		sum(used) FILTER (WHERE settled_at <= last) AS meanwhile
	FROM message, span
)
SELECT sums.reserved, used, given_back, charged, kept, earlier,
	coalesce(meanwhile::float8 / (capacity + rate * extract(epoch FROM last - first)::float8 * 1e6::float8 / period::float8), 0)
FROM sums, span, (SELECT sum(capacity) AS capacity, sum(rate) AS rate, max(period) AS period
	FROM weir_balance WHERE name = $1 AND shard >= 0 AND value > '-Infinity') b`

func (s *store) books(ctx context.Context, tokens ratelimit.Limit) (b books, err error) {
	var us int64
	err = s.pool.QueryRow(ctx, booksSQL, tokens.Name()).Scan(&b.reserved, &b.used, &b.givenBack,
		&b.charged, &b.kept, &us, &b.share)
	b.earlier = time.Duration(us) * time.Microsecond
	return b, err
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
