package ratelimit

import (
	"context"
	"database/sql"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-go/weir/internal/grace"
)

// executor is where the statements of a call go: a transaction, or a pool on which each round trip
// is a transaction of its own.
type executor struct {
	to       sender
	stepwise bool         // statements go one by one: if one fails, those before it may be in effect
	single   bool         // each round trip is a transaction of its own
	ends     bool         // what it has begun must end: see run
	attempt  *attempt     // of InTx; nil in a transaction that somebody else began
	lazy     *lazyTx      // the transaction of that attempt, outside its savepoints; or nil
	pgx      pgx.Tx       // any other pgx transaction; or nil
	sql      *sql.Tx      // a transaction of database/sql; or nil
	before   []*statement // sent ahead in each round trip
	trips    *int         // counts round trips; or nil
}

// sender sends statements, in one round trip if the driver can.
type sender interface {
	send(ctx context.Context, statements []*statement) error
}

// counting returns x, with its round trips counted in trips, too.
func (x executor) counting(trips *int) executor {
	x.trips = trips
	return x
}

// run runs statements in order. In a pgx transaction they take effect as a whole, or not at all.
//
// If a context ends while statements are under way, pgx closes the connection, and with it the
// transaction. If it ends between two trips, the transaction could go on without the second: with
// ends, run sends that all the same. Where statements go one by one, it could end between any two.
func (x executor) run(ctx context.Context, statements []*statement) error {
	x.count()
	if x.ends && (x.stepwise || ctx.Err() != nil) {
		var cancel context.CancelFunc
		ctx, cancel = grace.After(ctx)
		defer cancel()
	}
	if len(x.before) > 0 {
		statements = slices.Concat(x.before, statements)
	}
	return x.to.send(ctx, statements)
}

// change is run for statements that must not end half-way, although the transaction could go on
// after that. Where they go one by one, they run to the last one even if ctx ends meanwhile.
func (x executor) change(ctx context.Context, statements []*statement) error {
	x.ends = x.ends || x.stepwise && len(statements) > 1 && ctx.Err() == nil
	return x.run(ctx, statements)
}

func (x executor) count() {
	if x.trips != nil {
		*x.trips++
	}
}

// transaction identifies the transaction, as a map key. It is nil for an attempt of InTx, which
// remembers by itself what it may roll back.
func (x executor) transaction() any {
	switch {
	case x.sql != nil:
		return x.sql
	case x.pgx != nil && x.attempt == nil:
		return x.pgx.Conn() // the same for savepoints, and for later transactions of the connection
	}
	return nil
}

// session identifies the connection by its backend's process id, or is 0.
func (x executor) session() uint32 {
	var conn *pgx.Conn
	switch {
	case x.lazy != nil:
		conn = x.lazy.connection()
	case x.pgx != nil:
		conn = x.pgx.Conn()
	}
	if conn == nil {
		return 0
	}
	return conn.PgConn().PID()
}

// transaction returns the executor of a pgx transaction.
func (l *Limiter) transaction(tx pgx.Tx) executor {
	var x executor
	switch t := tx.(type) {
	case *lazyTx:
		x.lazy, x.attempt = t, t.attempt
	case *savepoint:
		tx, x.pgx, x.attempt = t.Tx, t.Tx, t.attempt
	default:
		x.pgx = tx
	}
	x.to = pgxSender{l, tx, x.attempt}
	return x
}

// made reports whether New has made l.
func (l *Limiter) made() bool { return l.sql.Look != "" }

func errNotMade() error {
	return &InvalidError{Field: "Limiter", Value: plain("the zero one"), Want: "one made by New"}
}

func errNoTx() error {
	return &InvalidError{Field: "tx", Value: plain("nil"), Want: "an open transaction"}
}

// pgxSender sends in a pgx transaction.
type pgxSender struct {
	l       *Limiter
	tx      pgx.Tx
	attempt *attempt
}

func (x pgxSender) send(ctx context.Context, statements []*statement) error {
	tx, lazy := x.tx.(*lazyTx)
	begins := lazy && !tx.begun
	statements = x.l.marked(x.attempt, x.tx, statements)
	if rows := x.attempt.queueFor(x.l, statements); begins && len(rows) > 0 {
		tx.queue = rows
	}
	if x.attempt != nil {
		x.attempt.used = true
	}
	var failed *statement
	var err error
	switch {
	case begins:
		failed, err = tx.beginWith(ctx, statements)
	case lazy:
		if err = tx.usable(); err == nil {
			failed, err = send(ctx, tx.to, statements)
		}
	default:
		failed, err = send(ctx, x.tx, statements)
	}
	x.attempt.observe(x.l, failed, err)
	return err
}

// send runs statements in one round trip. If one fails, it returns that statement with the error.
func send(ctx context.Context, tx querier, statements []*statement) (failed *statement, err error) {
	if len(statements) == 1 && statements[0].here == nil {
		s := statements[0]
		rows, err := tx.Query(ctx, s.sql, s.args...)
		if err != nil {
			return s, err
		}
		return s, s.read(rows)
	}
	return sendBatch(ctx, tx, statements)
}

type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

const commitSQL = `COMMIT`

// sendBatch is send with a pgx.Batch, also for one statement.
func sendBatch(
	ctx context.Context, to batchSender, statements []*statement,
) (failed *statement, err error) {
	statements = timed(statements)
	batch := &pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, len(statements))}
	for _, s := range statements {
		batch.Queue(s.sql, s.args...)
	}
	results := to.SendBatch(ctx, batch)
	for _, s := range statements {
		if s.c == nil && s.many == nil && s.here == nil {
			_, err = results.Exec()
		} else {
			var rows pgx.Rows
			if rows, err = results.Query(); err == nil {
				err = s.read(rows)
			}
		}
		if err != nil {
			failed = s
			break
		}
	}
	// An error after the answer to COMMIT is not about the transaction: Postgres may report a
	// statement_timeout late, which ended just before it.
	if closeErr := results.Close(); err == nil && statements[len(statements)-1].sql != commitSQL {
		err = closeErr
	}
	return failed, err
}

// read reads the answer: one row or none, unless it is about many, or takes parts.
func (s *statement) read(rows pgx.Rows) error {
	defer rows.Close()
	defer s.tick()
	s.found = false // the statement may have failed after its answer, and run again
	s.rows = nil
	if s.many != nil {
		return s.many.read(rows, s.looks)
	}
	for rows.Next() {
		if s.found && s.looks {
			return prunedSince
		}
		// Every decision reads a row, and Scan would take longer than everything else here.
		if !s.decodeFrom(rows.FieldDescriptions(), rows.RawValues()) {
			if err := rows.Scan(s.dest()...); err != nil {
				return err
			}
		}
		switch s.found = true; {
		case s.look != nil && s.look.repeats():
			return prunedSince
		case s.looks: // unless there is a second row
			continue
		case s.parts == 0:
			rows.Close()
			return rows.Err()
		}
		s.rows = append(s.rows, part{s.answer, s.row})
	}
	return rows.Err()
}

// prunedSince is for a look that has found a row twice. Above READ COMMITTED a transaction still sees
// a row that was deleted after it had taken its snapshot. If it takes from it, it inserts the row
// anew, without an error, and then sees both.
const prunedSince conflict = "a balance was pruned after the transaction had taken its snapshot"

// decodeFrom reads a balance without Scan, if it is in the binary format: pgx uses another one in
// its simple protocol only. It reports whether it has.
func (s *statement) decodeFrom(fields []pgconn.FieldDescription, raw [][]byte) bool {
	if len(fields) < 5 || len(raw) != len(fields) {
		return false
	}
	types := [...]uint32{pgtype.Float8OID, pgtype.TimestamptzOID, pgtype.TimestamptzOID,
		pgtype.Int8OID, pgtype.Float8OID}
	for i := range fields {
		if fields[i].Format != pgx.BinaryFormatCode ||
			i < len(types) && fields[i].DataTypeOID != types[i] {
			return false
		}
	}
	a := &s.answer
	a.value = pgtype.Float8{Float64: math.Float64frombits(bits(raw[0])), Valid: raw[0] != nil}
	a.ts, a.paused = timestamp(raw[1]), timestamp(raw[2])
	a.delay = pgtype.Int8{Int64: int64(bits(raw[3])), Valid: raw[3] != nil} //nolint:gosec // the same bits
	a.moved = pgtype.Float8{Float64: math.Float64frombits(bits(raw[4])), Valid: raw[4] != nil}
	switch {
	case len(raw) == 6 && s.looks && fields[5].DataTypeOID == pgtype.TimestamptzOID:
		a.at = timestamp(raw[5]).Time
	case len(raw) == 6 && s.shards != nil && fields[5].DataTypeOID == pgtype.Int4OID &&
		len(raw[5]) == 4:
		s.row = int32(binary.BigEndian.Uint32(raw[5])) //nolint:gosec // the same bits
	case len(raw) != 5 || s.looks || s.shards != nil:
		return false
	}
	return true
}

// bits returns a column of eight bytes; 0 for null.
func bits(raw []byte) uint64 {
	if len(raw) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(raw)
}

// timestamp decodes a timestamptz: microseconds since 2000.
func timestamp(raw []byte) pgtype.Timestamptz {
	const epoch = 946_684_800
	switch us := int64(bits(raw)); { //nolint:gosec // the same bits
	case len(raw) != 8:
		return pgtype.Timestamptz{}
	case us == math.MaxInt64:
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case us == math.MinInt64:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	default:
		return pgtype.Timestamptz{Time: time.Unix(epoch+us/1e6, us%1e6*1000), Valid: true}
	}
}
