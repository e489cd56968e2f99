package ratelimit

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/book"
	"github.com/weir-go/weir/internal/limits/contended"
	"github.com/weir-go/weir/internal/limits/denials"
	"github.com/weir-go/weir/internal/limits/statements"
	"github.com/weir-go/weir/internal/limits/where"
)

// Config configures a [Limiter]. The zero Config is safe: no answer is no grant, and calls without
// a transaction end after a while. docs/operations.md has a table of what its defaults bound, and a
// list of what to decide before production.
type Config struct {
	// Schema is the Postgres schema with Weir's tables, quoted as needed. Name it if other roles
	// may create tables in a schema of the search_path. Default: whatever the connection's
	// search_path finds.
	Schema string

	// IsoLevel is the isolation level of [Limiter.InTx] and [Limiter.SendBatch], one of pgx's.
	// Limits hold at each level: choose it for what your own statements read and write. The default
	// of the server does not matter. Default: pgx.Serializable, and with Citus pgx.ReadCommitted.
	IsoLevel pgx.TxIsoLevel

	// MaxAttempts bounds how often [Limiter.InTx] runs a transaction that fails to serialize. The
	// context bounds it too. Default: 50, or no bound if the context has a deadline.
	MaxAttempts int

	// Timeout bounds each call of [Autocommit] and of [Coalesced] whose ctx has no deadline, so
	// that no caller waits for ever for a database that hangs or for a locked row. The error
	// matches [context.DeadlineExceeded]. Wait may wait for its turn for longer: Timeout bounds its
	// calls of the database. It does not bound [Limiter.InTx], nor the verbs in a transaction of
	// the caller's: only the caller knows how long its work takes. Give them a ctx with a deadline.
	// Default: 30 seconds. With a number below 0 there is no bound.
	Timeout time.Duration

	// RememberDenials answers repeated denied calls from memory, in a microsecond and without the
	// database: the same request, of one limit, before the RetryAt of its last denial. It works for
	// calls without a transaction, and for the first call in an InTx. Other calls may read an old
	// snapshot, or what their own transaction has written. A committed reset, settlement or resume
	// by this process ends it. Two kinds of changes may go unnoticed until the RetryAt: those by
	// other processes, and those in a transaction of this process that InTx has not begun. Default:
	// false; each denial is read from the database.
	RememberDenials bool

	// Logger gets a warning, at most every ten minutes, about a limit that needs more shards: see
	// [Shards]. It also gets settlements of [Autocommit.Do] that fail. Default: [slog.Default].
	Logger *slog.Logger

	// Observer gets decisions and transactions, and what they cost. Default: none.
	Observer Observer

	// Portable uses only statements that distributed engines with Postgres' protocol support as
	// well. It does not use advisory locks, with which otherwise callers of a limit with shards
	// avoid each other, and transactions that have lost a row queue for it: see [Limiter.InTx].
	// Coalesced calls are decided one key at a time, except on Citus, and without lock_timeout.
	// Default: false.
	Portable bool

	// Citus is for tables that [schema.Distributed] has distributed. It implies Portable.
	// Transactions that write both distributed tables and tables that only the coordinator has,
	// such as River's jobs, commit in two phases. Otherwise a crash could keep the tokens and lose
	// the job, or the other way round. [Limiter.InTx], [Limiter.InSQLTx] and [Limiter.SendBatch]
	// request two-phase commit before COMMIT, where it is needed. In a transaction of your own,
	// each call that writes requests it: see Colocated. On Citus SERIALIZABLE holds on each node by
	// itself, and conflicts that are found at COMMIT cannot be told from a node that is lost, so
	// the default of IsoLevel is pgx.ReadCommitted. Default: false.
	Citus bool

	// Colocated, with Citus, says that no transaction that you begin yourself takes or gives back
	// tokens and writes tables that only the coordinator has. Inserting, settling or cancelling a
	// job writes River's tables. Then calls in transactions of your own do not request two-phase
	// commit, which takes 1.7 times as long. Colocated changes nothing in transactions of InTx,
	// InSQLTx and SendBatch, nor in those that package scheduler begins. Default: false.
	Colocated bool

	// Clock replaces the database's clock, for tests that need to set it. Do not set it in
	// production: the clocks of machines differ. Default: the database's.
	Clock func() time.Time
}

// Limiter decides. It holds no connection and no balance. It remembers bounded numbers of keys that
// were denied or contended lately. It is safe for concurrent use, and one for each program and
// database is enough. Do not use one for two databases, or for two schemas of one: what it
// remembers of a key is not told apart. [New] makes it; the zero Limiter is refused with an error
// that matches [ErrInvalid].
type Limiter struct {
	cfg       Config // with its defaults
	sql       statements.Statements
	begin     string // BEGIN at the level of cfg
	denials   denials.Denials
	contended contended.Rows
	books     book.Books
	ranges    knownRanges // on Citus
	hot       contended.Hot
}

// defaultTimeout is longer than calls usually queue for a busy row, and shorter than people wait.
const defaultTimeout = 30 * time.Second

// New makes a Limiter. It does not touch the database.
func New(cfg Config) (*Limiter, error) {
	if why := where.Unfit(cfg.Schema, 63); why != "" {
		return nil, &InvalidError{Field: "Config.Schema", Value: where.Short(cfg.Schema),
			Want: "the name of a schema: " + why}
	}
	switch cfg.IsoLevel {
	case "", pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted:
	default:
		return nil, &InvalidError{Field: "Config.IsoLevel", Value: where.Short(string(cfg.IsoLevel)),
			Want: `one of pgx's: "serializable", "repeatable read", "read committed" or "read uncommitted"`}
	}
	if cfg.Colocated && !cfg.Citus {
		return nil, &InvalidError{Field: "Config.Colocated", Value: true,
			Want: "false, or Config.Citus as well"}
	}
	if cfg.MaxAttempts < 0 {
		return nil, &InvalidError{Field: "Config.MaxAttempts", Value: cfg.MaxAttempts,
			Want: "a number above 0, or 0 for the default"}
	}
	if cfg.Citus {
		cfg.Portable, cfg.IsoLevel = true, cmp.Or(cfg.IsoLevel, pgx.ReadCommitted)
	}
	cfg.IsoLevel = cmp.Or(cfg.IsoLevel, pgx.Serializable)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	return &Limiter{
		cfg:   cfg,
		sql:   statements.New(cfg.Schema, cfg.Portable),
		begin: beginSQL(pgx.TxOptions{IsoLevel: cfg.IsoLevel}),
		hot:   contended.Hot{Logger: cmp.Or(cfg.Logger, slog.Default())},
	}, nil
}

// RateLimit takes what the requests ask for, from all of them or from none, within the caller's
// transaction. If that rolls back, nothing was taken. It works at READ COMMITTED, REPEATABLE READ
// and SERIALIZABLE.
//
// A denial is a [Result], not an error, so check [Result.OK], or use [Limiter.Consume]. Requests
// for the same limit and key are added up. Rows are always locked in the same order.
//
// It makes one round trip if granted, or if denied again soon after a denial; otherwise two, seldom
// three. The balance's row stays locked until the transaction ends. So at READ COMMITTED take late
// in a long transaction. Above READ COMMITTED take first, as a row that was written since the
// transaction's first statement makes it fail.
//
// Errors: one that matches [ErrInvalid] for a bad request, before anything is sent; otherwise the
// database's, wrapped, after which the transaction must be rolled back. Above READ COMMITTED it may
// be a serialization failure (40001), also at COMMIT. Then the whole transaction has to run again:
// [Limiter.InTx] does that. An error takes nothing.
//
// Above READ COMMITTED a denial may be as old as the transaction's first statement: another reason
// to take first.
//
// A denial in a SERIALIZABLE transaction leaves a predicate lock until that transaction and all
// concurrent ones end. Roll back after a denial: that frees it at once.
func (l *Limiter) RateLimit(ctx context.Context, tx pgx.Tx, requests ...Request) (Result, error) {
	return l.in(tx).RateLimit(ctx, requests...)
}

// Consume is [Limiter.RateLimit] for callers that need no [Result]. It returns nil if the requests
// were granted, and their work may start now. If they were denied it returns a [*DeniedError],
// which matches [ErrDenied] and says when to come again. Any other error is one of RateLimit's.
//
//	if err := limiter.Consume(ctx, tx, Uploads.For(user)); err != nil {
//		return err // rolls back: nothing was taken, nothing was written
//	}
//
// A request that may be granted for later, by [Request.OrReserve] or [Request.Within], is refused
// with an error that matches [ErrInvalid], before anything is sent: nil could not say when the work
// may start. A request of a [Shadow] is never denied.
func (l *Limiter) Consume(ctx context.Context, tx pgx.Tx, requests ...Request) error {
	return l.in(tx).Consume(ctx, requests...)
}

// CheckRateLimit returns what [Limiter.RateLimit] would answer, and takes nothing, writes nothing
// and locks nothing. Do not guard anything with a check, as others may take the tokens after it:
// take, and give back.
//
// Above READ COMMITTED it sees the transaction's snapshot, which is as old as its first statement.
func (l *Limiter) CheckRateLimit(
	ctx context.Context, tx pgx.Tx, requests ...Request,
) (Result, error) {
	return l.in(tx).CheckRateLimit(ctx, requests...)
}

// ResetRateLimit makes the balances of the requests full again; their counts do not matter. Debts
// of reservations are forgiven too, and their work will still run. A take that commits before the
// reset is forgotten; one that commits after it counts. If a forgotten take is given back or
// settled after others have taken, its tokens come back nevertheless, up to the capacity. Windows
// keep their start. A pause continues: see [Limiter.Resume].
func (l *Limiter) ResetRateLimit(ctx context.Context, tx pgx.Tx, requests ...Request) error {
	return l.in(tx).ResetRateLimit(ctx, requests...)
}

// ResetKey makes all balances of a key full again, for all limits, including those that this
// program does not define: everything of a tenant, a user or an address. Keys that only begin with
// this one are not affected. Otherwise it is [Limiter.ResetRateLimit]: a pause continues, and
// reserved work still runs.
//
// It reads an index page for each limit that is in use. Above READ COMMITTED it conflicts with
// transactions that use a limit for the first time, and may have to run again. If a limit gets other
// shards at the same time, it may also deadlock (40P01) with a call of several limits.
// [Autocommit.ResetKey] is READ COMMITTED. With [Config.Portable] it reads the whole
// table, and on Citus the part of it in which the key is.
func (l *Limiter) ResetKey(ctx context.Context, tx pgx.Tx, key string) error {
	return l.in(tx).ResetKey(ctx, key)
}

// GiveBack returns the tokens that a granted call took, for example for a request that was never
// sent. It never raises a balance above its capacity. Tokens of a window are lost once the key has
// been taken from in a later window. It gives back again each time it is called: call it once, in
// the transaction that records why, and not if the transaction that took has rolled back.
//
// A Result that was denied, or let through undecided, took nothing, and giving it back does
// nothing. The Result of a check, or the zero Result, is refused.
func (l *Limiter) GiveBack(ctx context.Context, tx pgx.Tx, res Result) error {
	return l.in(tx).GiveBack(ctx, res)
}

// Value reads one balance, refilled up to now. Its Value is negative if tokens are owed, and
// PausedUntil is set in a pause. It takes nothing, writes nothing and locks nothing. The count of
// the request does not matter.
func (l *Limiter) Value(ctx context.Context, tx pgx.Tx, request Request) (State, error) {
	return l.in(tx).Value(ctx, request)
}

// Pause closes the limits and keys of the requests for d from now on, by the database's clock, as
// an API asks for with a 429 and a Retry-After. The counts of the requests do not matter, nor their
// rules, except the windows.
//
// It holds for every call that is decided after it has committed. A [Lease] hands out what it
// holds, and learns of the pause within a second. Work that has started goes on.
//
// For a paused limit time stands still. Nothing flows in and nothing is granted before the pause is
// over; RetryAt is after it. With [Request.OrReserve] calls are still granted for later, within
// MaxReserved, for when the pause is over, also if there are tokens. Work that was reserved before
// is delayed by the length of the pause, or with a [FixedWindow] by as many windows as begin in it:
// [Outcome] has the Delay.
//
// A pause that already ends later stays. Pauses do not add up: the latest end counts.
// [Limiter.GiveBack] and [Limiter.ResetRateLimit] work as usual, and end no pause. If the
// transaction rolls back, there was no pause.
//
// A d of 0 or less, or of more than 366 days, is refused with an error that matches [ErrInvalid];
// microseconds are rounded up. Other errors are as those of [Limiter.RateLimit].
func (l *Limiter) Pause(
	ctx context.Context, tx pgx.Tx, d time.Duration, requests ...Request,
) error {
	return l.in(tx).Pause(ctx, d, requests...)
}

// Resume ends the pauses of the requests' limits and keys now. If there is none it does nothing.
// Balances refill from where they were when the pause began. Waiting work moves up by what was left
// of the pause. Shards that wait for the lines of which they were merged go on waiting: see
// [Limiter.Reshard].
func (l *Limiter) Resume(ctx context.Context, tx pgx.Tx, requests ...Request) error {
	return l.in(tx).Resume(ctx, requests...)
}

// Table returns the name of the table of balances, quoted for SQL, for your own statements that
// read it.
func (l *Limiter) Table() string { return l.sql.Table() }
