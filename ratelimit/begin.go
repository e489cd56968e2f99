package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
)

// lazyTx is the transaction of an attempt, which begins as late as possible: see InTx.
//
// After a BEGIN on its own, all statements go to the transaction that db returned. After a BEGIN in
// a batch, lazyTx sends on conn what pgx's transaction would send. If only pgx's transaction will
// do, it is made then: see real.
type lazyTx struct {
	// the context of InTx: for BEGIN on its own, and for methods without a context
	ctx  context.Context
	db   Beginner // conn, if that is known
	conn *pgx.Conn
	opts pgx.TxOptions

	attempt *attempt // notes that the callback has sent statements of its own, and how long it queued

	queue []where.Row // to queue for before the snapshot is taken
	// the session may still hold locks of the queue: an error came before it released them
	locked bool

	unsure confirmation // of what was looked at before BEGIN; or nil

	begun  bool    // BEGIN was sent, or never will be
	to     querier // once begun: conn, or tx
	tx     pgx.Tx  // pgx's own, if there is one
	closed bool
	failed error // an error of BEGIN or of the queue: InTx returns it whatever fn does with it
	thrown bool  // failed was thrown as a panic
}

// querier is what a connection and a transaction have in common.
type querier interface {
	batchSender
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
		src pgx.CopyFromSource) (int64, error)
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// connect returns the connection on which db would begin a transaction, or nil if that is unknown,
// and a function that gives it back.
func connect(ctx context.Context, db Beginner) (conn *pgx.Conn, release func(), err error) {
	switch db := db.(type) {
	case *pgx.Conn:
		return db, func() {}, nil
	case *pgxpool.Conn:
		return db.Conn(), func() {}, nil
	case *pgxpool.Pool:
		c, err := db.Acquire(ctx)
		if err != nil {
			return nil, nil, err
		}
		// the pool closes the connection if a transaction is still open
		return c.Conn(), c.Release, nil
	}
	return nil, func() {}, nil
}

// newTx returns a transaction that has not begun; or one that has, if BEGIN cannot be sent later.
func newTx(
	ctx context.Context, db Beginner, opts pgx.TxOptions,
) (t *lazyTx, release func(), err error) {
	conn, release, err := connect(ctx, db)
	if err != nil {
		return nil, nil, errBegin(err)
	}
	if conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		release()
		return nil, nil, fmt.Errorf("%w: the connection is in a transaction already, so use that one",
			ErrNested)
	}
	t = &lazyTx{ctx: ctx, db: db, conn: conn, opts: opts}
	if conn != nil {
		t.db = conn
	}
	if conn == nil || opts.BeginQuery != "" || ctx.Err() != nil || conn.IsClosed() {
		_ = t.begin()
	}
	return t, release, nil
}

// begin sends BEGIN on its own.
func (t *lazyTx) begin() error {
	t.begun = true
	tx, err := t.db.BeginTx(t.ctx, t.opts)
	if err != nil {
		t.closed = true
		t.failed = errBegin(err)
		if t.conn != nil {
			t.lose(t.ctx) // pgx did this itself until v5.10
		}
		return t.failed
	}
	t.tx, t.to = tx, tx
	if looks, holds := t.confirm(); len(looks) > 0 && t.failed == nil {
		if _, err := send(t.ctx, tx, looks); err != nil {
			t.failed = err
		} else {
			t.failed = holds()
		}
	}
	return t.failed
}

// confirm is unsure if there is one.
func (t *lazyTx) confirm() (looks []*statement, holds func() error) {
	if t.unsure == nil {
		return nil, func() error { return nil }
	}
	return t.unsure()
}

func errBegin(err error) error { return fmt.Errorf("ratelimit: begin: %w", err) }

func errQueue(err error) error {
	return fmt.Errorf("ratelimit: queue for a contended limit: %w", hint(err))
}

// beginWith sends BEGIN, the statements of the queue, and statements in one round trip. If one
// fails, it returns that statement with the error.
func (t *lazyTx) beginWith(
	ctx context.Context, statements []*statement,
) (failed *statement, err error) {
	t.begun, t.to = true, t.conn
	var short [4]*statement
	trip := short[:1]
	if trip[0] = beginSerializable; t.opts != (pgx.TxOptions{IsoLevel: pgx.Serializable}) {
		trip[0] = &statement{sql: beginSQL(t.opts)}
	}
	var queue []*statement
	if len(t.queue) > 0 {
		queue = queueFor(&t.attempt.l.sql, where.Queue(t.queue))
		trip = append(trip, queue...)
		began := time.Now()
		defer func() { t.attempt.queued = time.Since(began) }()
	}
	looks, holds := t.confirm()
	failed, err = sendBatch(ctx, t.conn, append(append(trip, looks...), statements...))
	if err == nil {
		t.failed = holds()
		return nil, t.failed
	}
	t.locked = slices.Contains(queue, failed)
	if !t.locked && !t.conn.IsClosed() && t.conn.PgConn().TxStatus() == 'I' {
		// There is no transaction: BEGIN was refused, ctx had ended, or pgx could not prepare the
		// batch. Sent one by one, each statement fails where it should: BEGIN by itself, any other
		// within the transaction.
		if err := t.begin(); err != nil || len(statements) == 0 {
			return nil, err
		}
		return send(ctx, t.tx, statements)
	}
	var answer *pgconn.PgError
	switch {
	case failed == trip[0] && errors.As(err, &answer):
		t.closed = true
		t.failed = errBegin(answer)
	case t.locked, len(queue) > 0 && len(statements) == 0:
		t.failed = errQueue(err)
	}
	// If the connection is lost, the whole trip has failed: the answers come only after its last
	// statement.
	return failed, err
}

// beginSerializable begins nearly all transactions.
var beginSerializable = &statement{sql: "BEGIN ISOLATION LEVEL SERIALIZABLE"}

func beginSQL(o pgx.TxOptions) string {
	sql := "BEGIN ISOLATION LEVEL " + string(o.IsoLevel)
	if o.AccessMode != "" {
		sql += " " + string(o.AccessMode)
	}
	if o.DeferrableMode != "" {
		sql += " " + string(o.DeferrableMode)
	}
	return sql
}

// need sends BEGIN, if that has not happened, before a statement of the callback.
func (t *lazyTx) need() error {
	t.attempt.used, t.attempt.foreign = true, true
	if !t.begun {
		if len(t.queue) == 0 {
			return t.begin()
		}
		_, _ = t.beginWith(t.ctx, nil)
	}
	return t.usable()
}

// usable returns why nothing can be sent in the transaction, which has begun.
func (t *lazyTx) usable() error {
	if t.failed == nil && t.closed {
		return pgx.ErrTxClosed
	}
	return t.failed
}

// real returns pgx's own transaction, for savepoints and large objects. If BEGIN was sent in a
// batch, real makes pgx's transaction with an empty BEGIN, which costs the round trip that was
// saved.
func (t *lazyTx) real() (pgx.Tx, error) {
	if err := t.need(); err != nil {
		return nil, err
	}
	if t.tx == nil {
		if t.conn.PgConn().IsBusy() { // pgx would close it
			return nil, errors.New("ratelimit: rows or a batch of the transaction are still open: close them first")
		}
		tx, err := t.conn.BeginTx(t.ctx,
			pgx.TxOptions{BeginQuery: ";", CommitQuery: t.opts.CommitQuery})
		if err != nil {
			return nil, err
		}
		t.tx, t.to = tx, tx
	}
	return t.tx, nil
}

func (t *lazyTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.real()
	if err != nil {
		return nil, err
	}
	return (&savepoint{tx, t.attempt}).Begin(ctx)
}

// savepoint is a savepoint that the callback has begun, or one in it.
type savepoint struct {
	pgx.Tx
	attempt *attempt
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := s.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{tx, s.attempt}, nil
}

// Commit and Rollback do what pgx's do, also to a connection on which they fail.
func (t *lazyTx) Commit(ctx context.Context) error { return t.commit(ctx, false) }

// requestTwoPhase has Citus commit in two phases, if that is needed: see Statements.TwoPhaseIf. It
// is for pgx's transaction, which sends COMMIT alone. Any other sends the request with its COMMIT.
// So after an error here nothing was committed.
func (t *lazyTx) requestTwoPhase(ctx context.Context) error {
	if t.closed || t.tx == nil {
		return nil
	}
	if conn := t.connection(); conn != nil && conn.PgConn().TxStatus() != 'T' {
		return nil
	}
	if _, err := t.tx.Exec(ctx, t.attempt.l.sql.TwoPhaseIf); err != nil {
		return fmt.Errorf("ratelimit: rolled back before COMMIT: %w", err)
	}
	return nil
}

// commit commits, in two phases if that is needed: see requestTwoPhase.
func (t *lazyTx) commit(ctx context.Context, twoPhase bool) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	if !t.begun {
		t.begun = true
		return nil
	}
	answered := false
	defer func() {
		if !answered { // a tracer has panicked
			_ = t.conn.Close(ctx)
		}
	}()
	if t.tx != nil {
		err := t.tx.Commit(ctx)
		answered = true
		return err
	}
	sql := cmp.Or(t.opts.CommitQuery, "commit")
	if twoPhase && t.conn.PgConn().TxStatus() == 'T' {
		sql = t.attempt.l.sql.TwoPhaseIf + "; " + sql
	}
	tag, err := t.conn.Exec(ctx, sql)
	answered = true
	if err != nil {
		if t.conn.PgConn().TxStatus() != 'I' {
			_ = t.conn.Close(ctx)
		}
		return err
	}
	if tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

func (t *lazyTx) Rollback(ctx context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	if !t.begun {
		t.begun = true
		return nil
	}
	if t.tx != nil {
		return t.tx.Rollback(ctx)
	}
	var err error
	// in one round trip, so that a pooler does not send it to another server connection
	if t.locked {
		_, err = t.conn.Exec(ctx, t.attempt.l.sql.Unqueue(where.Queue(t.queue)),
			pgx.QueryExecModeSimpleProtocol)
	} else {
		_, err = t.conn.Exec(ctx, "rollback")
	}
	if err != nil {
		t.lose(ctx)
	}
	return err
}

// lose closes the connection at once, so that fn cannot use it outside of the transaction.
func (t *lazyTx) lose(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = t.conn.Close(ctx)
}

// stillDenied returns what confirms, within a transaction, a denial that was read before BEGIN. If
// no limit of the call has shards, the balances must be the same. If they are not, the transaction
// runs again, and then reads them within itself, so it runs once more at the most. Otherwise it
// would read before BEGIN again. So the balances of such a call may have changed, if they would
// still have denied it. again says that the transaction runs again already.
func (l *Limiter) stillDenied(seen []*spread.Whole, calls []call, again bool) confirmation {
	return func() ([]*statement, func() error) {
		looks := l.looksAt(calls)
		same := !again && !slices.ContainsFunc(looks, (*statement).ofShards)
		return looks, func() error {
			denied := false
			for i, s := range looks {
				w, valid := s.saw()
				if !valid {
					return nil // the next look reports it
				}
				// a row that was closed since denies nothing: its limit has shards now
				if (same || s.closed()) && w.Rows[0] != seen[i].Rows[0] {
					return notConfirmed
				}
				_, ok := w.Plan(&calls[i].Ask, seen[i].At, false, nil)
				denied = denied || !ok
			}
			if !denied {
				return notConfirmed
			}
			return nil
		}
	}
}

// confirmation returns statements that look again at balances that were read before the transaction
// began, and what to call after them. If that returns notConfirmed, because the balances have
// changed, the transaction runs again, as after a serialization failure.
type confirmation func() (looks []*statement, holds func() error)

const notConfirmed conflict = "a balance has changed between a denial and the transaction's begin"
