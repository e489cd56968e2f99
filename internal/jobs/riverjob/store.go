// Package riverjob reads and moves the jobs of river_job that wait, and locks those that are due.
// It writes to no row that is running. It has the connections that a client's rooms share, and
// wakes River when jobs are due, but it does not know why a job is looked at or moved. A Store and a
// Client may be used concurrently, a Waiter by one goroutine at a time.
package riverjob

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// FarOff is when a job is due whose turn has not come: later than any ScheduledAt, and within what
// a time.Duration holds.
var FarOff = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// Store runs statements on the tables that one River client uses.
type Store struct {
	Limiter *ratelimit.Limiter
	Pacing  ticket.Pacing
	Schema  string            // River's; "" for the current one
	tables  *strings.Replacer // names them
}

// NewStore returns the Store in one of River's schemas.
func NewStore(limiter *ratelimit.Limiter, pacing ticket.Pacing, schema string) Store {
	prefix, weir := "", ""
	if schema != "" {
		prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	if limiter != nil { // else each verb says so
		weir = strings.TrimSuffix(limiter.Table(), "weir_balance")
	}
	return Store{limiter, pacing, schema, strings.NewReplacer("{river}", prefix, "{ours}", weir)}
}

// SQL names the tables of a statement.
func (s Store) SQL(sql string) string { return s.tables.Replace(sql) }

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Query runs a statement, whose tables it names, and calls each after it has scanned a row into the
// columns.
func (s Store) Query(
	ctx context.Context, q Querier, sql string, args []any, each func(), columns ...any,
) error {
	rows, _ := q.Query(ctx, s.SQL(sql), args...) // they tell the error, too
	_, err := pgx.ForEachRow(rows, columns, func() error { each(); return nil })
	return err
}

// Send runs a statement whose last parameter is an array of rows, as JSON. Without rows it does
// nothing.
func Send[T any](
	ctx context.Context, s Store, q Querier, sql string, rows []T, args ...any,
) error {
	if len(rows) == 0 {
		return nil
	}
	b, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return s.Query(ctx, q, sql, append(args, string(b)), nil)
}

// Which are those of the jobs that a statement selects, by their ids.
func (s Store) Which(
	ctx context.Context, q Querier, sql string, ids []int64,
) (map[int64]bool, error) {
	var id int64
	found := map[int64]bool{}
	err := s.Query(ctx, q, sql, []any{ids}, func() { found[id] = true }, &id)
	return found, err
}
