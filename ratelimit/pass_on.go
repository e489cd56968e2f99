package ratelimit

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/limits/answers"
)

func (t *lazyTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource,
) (int64, error) {
	if err := t.need(); err != nil {
		return 0, err
	}
	return t.to.CopyFrom(ctx, table, columns, src)
}

func (t *lazyTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.need(); err != nil {
		return answers.Batch(err)
	}
	return t.to.SendBatch(ctx, b)
}

// LargeObjects cannot return an error. So if there is no transaction it panics, and call turns the
// panic into the error.
func (t *lazyTx) LargeObjects() pgx.LargeObjects {
	tx, err := t.real()
	if err != nil {
		t.failed, t.thrown = err, true
		panic(err)
	}
	return tx.LargeObjects()
}

// call runs fn, and returns failed in place of its error if that is set.
func (t *lazyTx) call(fn func() error) (err error) {
	defer func() {
		if t.thrown {
			if p := recover(); p != nil && p != any(t.failed) {
				panic(p)
			}
		}
		if t.failed != nil {
			err = t.failed
		}
	}()
	if t.failed != nil {
		return t.failed
	}
	return fn()
}

func (t *lazyTx) Prepare(
	ctx context.Context, name, sql string,
) (*pgconn.StatementDescription, error) {
	if err := t.need(); err != nil {
		return nil, err
	}
	return t.to.Prepare(ctx, name, sql)
}

func (t *lazyTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.need(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.to.Exec(ctx, sql, args...)
}

func (t *lazyTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.need(); err != nil {
		return answers.Rows(err), err
	}
	return t.to.Query(ctx, sql, args...)
}

func (t *lazyTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.need(); err != nil {
		return answers.Rows(err)
	}
	return t.to.QueryRow(ctx, sql, args...)
}

func (t *lazyTx) Conn() *pgx.Conn {
	_ = t.need() // if BEGIN fails, the connection is closed
	return t.connection()
}

// connection is Conn without BEGIN, for InTx itself.
func (t *lazyTx) connection() *pgx.Conn {
	if t.tx != nil {
		return t.tx.Conn()
	}
	return t.conn
}
