package ratelimit

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// txn is the transaction that InTx gives to its callback. It notes when the callback sends
// statements of its own. A savepoint that the callback begins is a txn of the same attempt.
type txn struct {
	pgx.Tx
	attempt *attempt
}

func (t *txn) Begin(ctx context.Context) (pgx.Tx, error) {
	t.attempt.callers()
	tx, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &txn{tx, t.attempt}, nil
}

func (t *txn) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource,
) (int64, error) {
	t.attempt.callers()
	return t.Tx.CopyFrom(ctx, table, columns, src)
}

func (t *txn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	t.attempt.callers()
	return t.Tx.SendBatch(ctx, b)
}

func (t *txn) LargeObjects() pgx.LargeObjects {
	t.attempt.callers()
	return t.Tx.LargeObjects()
}

func (t *txn) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	t.attempt.callers()
	return t.Tx.Prepare(ctx, name, sql)
}

func (t *txn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	t.attempt.callers()
	return t.Tx.Exec(ctx, sql, args...)
}

func (t *txn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	t.attempt.callers()
	return t.Tx.Query(ctx, sql, args...)
}

func (t *txn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	t.attempt.callers()
	return t.Tx.QueryRow(ctx, sql, args...)
}

func (t *txn) Conn() *pgx.Conn {
	t.attempt.callers()
	return t.Tx.Conn()
}

// callers records that the callback sends something of its own.
func (a *attempt) callers() { a.used, a.foreign = true, true }
