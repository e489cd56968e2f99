package answers

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Rows returns the answer to a query that was not sent, because of err.
func Rows(err error) pgx.Rows { return failedRows{err: err} }

// Batch returns the answers to a batch that was not sent, because of err.
func Batch(err error) pgx.BatchResults { return failedBatch{err: err} }

// failedRows is the answer to a query that was not sent.
type failedRows struct {
	pgx.Rows // nil: it is here so that a method that a later pgx adds does not break the build
	err      error
}

func (r failedRows) Close()                                       {}
func (r failedRows) Err() error                                   { return r.err }
func (r failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                            { return r.err }
func (r failedRows) Values() ([]any, error)                       { return nil, r.err }
func (r failedRows) RawValues() [][]byte                          { return nil }
func (r failedRows) Conn() *pgx.Conn                              { return nil }

// since v5.11
func (r failedRows) TypeMap() *pgtype.Map { return pgtype.NewMap() }

// failedBatch is the answer to a batch that was not sent.
type failedBatch struct {
	pgx.BatchResults // nil, as above
	err              error
}

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return failedRows{err: b.err}, b.err }
func (b failedBatch) QueryRow() pgx.Row                { return failedRows{err: b.err} }
func (b failedBatch) Close() error                     { return b.err }

// since v5.12: the transaction of a batch that begins one
func (b failedBatch) Tx() pgx.Tx { return nil }
