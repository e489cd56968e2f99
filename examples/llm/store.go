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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/schema"
)

// store is the application's database: a schema of its own, so that the demo may run on a database in use.
type store struct {
	pool   *pgxpool.Pool
	schema string
}

const messages = `CREATE TABLE message (
	id         text PRIMARY KEY,
	tenant     text NOT NULL,
	tokens     int  NOT NULL,
	planned_at timestamptz, -- reserved: when the job was to start
	started_at timestamptz, -- when it first did
	used       int,
	answer     text
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
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{Logger: quiet(), Schema: s.schema})
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := s.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{s.schema}.Sanitize()+" CASCADE")
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
	err = s.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE planned_at IS NOT NULL), count(started_at), count(answer) FROM message`).
		Scan(&c.saved, &c.reserved, &c.started, &c.answered)
	return c, err
}

// lateness returns by how much the reserved messages started after, or before, they were to.
func (s *store) lateness(ctx context.Context) ([]time.Duration, error) {
	rows, err := s.pool.Query(ctx, `SELECT (extract(epoch FROM started_at - planned_at) * 1e6)::bigint FROM message
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

// used is the sum of the tokens that the API said were used.
func (s *store) used(ctx context.Context) (n int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT coalesce(sum(used), 0) FROM message`).Scan(&n)
	return n, err
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
