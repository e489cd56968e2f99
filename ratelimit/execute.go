package ratelimit

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// pgxExecutor runs statements in a pgx transaction. A batch takes effect as a whole, or not at all.
type pgxExecutor struct {
	ordinary
	l       *Limiter
	tx      pgx.Tx
	attempt *attempt // of InTx; nil in a transaction that the caller began
}

func (l *Limiter) transaction(tx pgx.Tx) (executor, error) {
	if !l.made() {
		return nil, errNotMade()
	}
	if tx == nil {
		return nil, errNoTx()
	}
	x := pgxExecutor{l: l, tx: tx, attempt: attemptIn(tx)}
	if s, ok := tx.(*savepoint); ok {
		x.tx = s.Tx
	}
	return x, nil
}

// made reports whether New has made l.
func (l *Limiter) made() bool { return l.sql.Look != "" }

func errNotMade() error {
	return &InvalidError{Field: "Limiter", Value: plain("the zero one"), Want: "one made by New"}
}

func errNoTx() error {
	return &InvalidError{Field: "tx", Value: plain("nil"), Want: "an open transaction"}
}

// A transaction that the caller began counts as fresh: nothing is known of it. One of InTx above
// READ COMMITTED has its snapshot once it was used. A read would then still see a denial that is
// over, while a take would find the newer row.
func (x pgxExecutor) fresh() bool {
	a := x.attempt
	return a == nil || !a.used || !a.keepsSnapshot()
}

// alone is known only if InTx has yet to send BEGIN.
func (x pgxExecutor) alone() bool {
	t, ok := x.tx.(*lazyTx)
	return ok && !t.begun
}

func (x pgxExecutor) aside(ctx context.Context, looks []*statement, exact bool) (bool, error) {
	t, ok := x.tx.(*lazyTx)
	if !ok || t.begun || t.failed != nil || t.unsure != nil || exact && x.attempt.again {
		return false, nil
	}
	_, err := sendBatch(ctx, t.conn, looks)
	return err == nil, err
}

func (x pgxExecutor) restart(ctx context.Context, looks []*statement) (bool, error) {
	t, ok := x.tx.(*lazyTx)
	if !ok || len(x.attempt.made) > 0 { // it would also roll back the new layout
		return false, nil
	}
	did, err := t.restart(ctx, looks)
	if did {
		x.attempt.used, x.attempt.conflict = false, nil
	}
	return did, err
}

func (x pgxExecutor) doubt(confirm func() *confirmation) {
	// otherwise each statement reads anew
	if t, ok := x.tx.(*lazyTx); ok && !t.begun && x.attempt.keepsSnapshot() {
		t.unsure = confirm
	}
}

func (x pgxExecutor) transaction() any {
	if x.attempt != nil {
		return x.attempt
	}
	return x.tx.Conn() // the same for savepoints, and for later transactions of the connection
}

// session is the backend's process id.
func (x pgxExecutor) session() uint32 {
	if tx, ok := x.tx.(*lazyTx); ok {
		if conn := tx.connection(); conn != nil {
			return conn.PgConn().PID()
		}
		return 0
	}
	if conn := x.tx.Conn(); conn != nil {
		return conn.PgConn().PID()
	}
	return 0
}

func (x pgxExecutor) run(ctx context.Context, statements []*statement) error {
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
		failed, err = tx.send(ctx, statements)
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

// read reads the answer: one row or none, unless it is about many.
func (s *statement) read(rows pgx.Rows) error {
	defer rows.Close()
	defer s.tick()
	if s.many != nil {
		return s.many.read(rows, s.looks)
	}
	if rows.Next() {
		if !s.decode(rows) {
			if err := rows.Scan(s.dest()...); err != nil {
				return err
			}
		}
		s.found = true
		rows.Close()
	}
	return rows.Err()
}

// decode reads a row without Scan, if it is in the binary format: pgx uses another one in its
// simple protocol only. Every decision reads a row, and Scan would take longer than everything else
// here.
func (s *statement) decode(rows pgx.Rows) bool {
	if s.once != nil || s.look != nil || s.line {
		return false
	}
	return s.decodeFrom(rows.FieldDescriptions(), rows.RawValues())
}

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
