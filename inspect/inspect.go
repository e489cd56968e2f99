package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/internal/pgerr"
	"github.com/weir-go/weir/ratelimit"
)

// ErrNoBalance is matched by the error of [Reader.Balance] for a key without a row: never used, or
// full when it was pruned.
var ErrNoBalance = errors.New("no balance")

// DB begins transactions: *pgxpool.Pool and *pgx.Conn do.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Config configures a [Reader]. The zero Config uses the defaults.
type Config struct {
	// Schema is the Postgres schema with Weir's tables, quoted as needed. Default: whatever the
	// connection's search_path finds.
	Schema string

	// Timeout bounds each statement, in the server. Default: 5 seconds, or the connection's
	// statement_timeout if that is shorter.
	Timeout time.Duration

	// Clock replaces the database's clock, for tests that need to set it. Default: the database's.
	Clock func() time.Time
}

// Reader reads. It holds no connection, and is safe for concurrent use if its DB is.
type Reader struct {
	db      DB
	table   string
	timeout int64 // milliseconds
	clock   func() time.Time

	portable atomic.Bool // the engine has no recursive queries over all keys: see portable.go
}

// New makes a Reader. It does not touch the database. A bad Config is refused with an error that
// matches [ratelimit.ErrInvalid].
func New(db DB, cfg Config) (*Reader, error) {
	switch {
	case db == nil:
		return nil, &ratelimit.InvalidError{Field: "db", Value: nil, Want: "a pool or a connection"}
	case where.Unfit(cfg.Schema, 63) != "":
		return nil, &ratelimit.InvalidError{Field: "inspect.Config.Schema", Value: cfg.Schema,
			Want: "the name of a schema: at most 63 bytes of UTF-8 without NUL"}
	case cfg.Timeout < 0 || cfg.Timeout > 24*time.Hour:
		return nil, &ratelimit.InvalidError{Field: "inspect.Config.Timeout", Value: cfg.Timeout,
			Want: "one above 0 and of a day at the most, or 0 for the default"}
	}
	r := &Reader{db: db, table: "weir_balance", timeout: 5000, clock: cfg.Clock}
	if cfg.Schema != "" {
		r.table = pgx.Identifier{cfg.Schema, "weir_balance"}.Sanitize()
	}
	if cfg.Timeout > 0 {
		r.timeout = int64((cfg.Timeout + time.Millisecond - 1) / time.Millisecond)
	}
	return r, nil
}

// boundSQL sets the statement_timeout of a transaction, unless a shorter one is set already. It
// also turns JIT off: the statements read few rows, even if the planner expects many, so compiling
// them would take longer than running them.
//
// $1 milliseconds
const boundSQL = `SELECT set_config('jit', 'off', true), CASE WHEN setting::bigint = 0 OR setting::bigint > $1::bigint
	THEN set_config('statement_timeout', $1::bigint::text, true) END
FROM pg_catalog.pg_settings WHERE name = 'statement_timeout'`

// read runs fn in a read-only transaction at READ COMMITTED, whatever the connection's defaults:
// SERIALIZABLE would take predicate locks, and a standby refuses it. If the engine refuses a
// statement as unsupported, read runs fn again, which then sends those of portable.go.
func (r *Reader) read(ctx context.Context, fn func(tx pgx.Tx) error) error {
	was := r.portable.Load()
	err := r.readOnce(ctx, fn)
	if isUnsupported(err) && !was {
		r.portable.Store(true)
		err = r.readOnce(ctx, fn)
	}
	return err
}

func (r *Reader) readOnce(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, r.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted,
		AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, boundSQL, r.timeout); err != nil {
			return err
		}
		return fn(tx)
	})
}

func (r *Reader) sql(text string) string { return strings.ReplaceAll(text, "{table}", r.table) }

// now returns the time of Config.Clock, or nil for the database's.
func (r *Reader) now() any {
	if r.clock == nil {
		return nil
	}
	return r.clock()
}

// hints are in addition to those of package pgerr, or instead of them.
var hints = map[string]string{
	"42501": "the role needs USAGE on the schema and SELECT on weir_balance",
	"57014": "a larger Config.Timeout may help, or a smaller Page", // query_canceled
}

// explain says what was being done when err came.
func explain(err error, doing string) error {
	return fmt.Errorf("inspect: %s: %w", doing, pgerr.Hint(err, hints))
}
