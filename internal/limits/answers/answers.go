// Package answers keeps the answers to the queries of a batch of pgx until its transaction has
// committed, and only then runs their callbacks. It also has the answers to what was not sent. It
// knows no statement. One goroutine at a time uses what it returns.
package answers

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Callback is the function that the caller set for a query of a batch, or nil.
type Callback = func(pgx.BatchResults) error

// Answers are the answers to the queries of a batch, kept until the transaction has committed.
type Answers []answer

// answer is the answer to one query, and its callback.
type answer struct {
	fn   Callback
	rows [][][]byte
	of   []pgconn.FieldDescription
	tag  pgconn.CommandTag
}

// Read reads the answers to the queries of a batch. fns are their callbacks.
func Read(results pgx.BatchResults, fns []Callback) (Answers, error) {
	all := make(Answers, 0, len(fns))
	for i, fn := range fns {
		a := answer{fn: fn}
		if err := a.read(results); err != nil {
			return nil, fmt.Errorf("statement %d: %w", i+1, err)
		}
		all = append(all, a)
	}
	return all, nil
}

func (a *answer) read(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if a.fn == nil {
			continue
		}
		raw := rows.RawValues() // valid until the next row
		row := make([][]byte, len(raw))
		for i, column := range raw {
			row[i] = bytes.Clone(column)
		}
		a.rows = append(a.rows, row)
	}
	if a.fn != nil {
		a.of = append(a.of, rows.FieldDescriptions()...)
	}
	rows.Close()
	a.tag = rows.CommandTag()
	return rows.Err()
}

// Call runs the callbacks in order, until one fails. It decodes values with conn's types.
func (all Answers) Call(conn *pgx.Conn) error {
	for i := range all {
		if all[i].fn == nil {
			continue
		}
		if err := all[i].fn(&replay{a: &all[i], conn: conn}); err != nil {
			return fmt.Errorf("ratelimit: committed, but the callback of statement %d failed: %w",
				i+1, err)
		}
	}
	return nil
}

// replay is the pgx.BatchResults that a callback gets: its next answer is the one that was kept.
type replay struct {
	failedBatch // for the methods that callbacks do not use
	a           *answer
	conn        *pgx.Conn
	next        int
	closed      bool
	err         error
}

func (r *replay) Exec() (pgconn.CommandTag, error) { return r.a.tag, nil }
func (r *replay) Query() (pgx.Rows, error)         { return replayRows{r}, nil }
func (r *replay) QueryRow() pgx.Row                { return replayRow{r} }
func (r *replay) Close() error                     { return nil }

// replayRow is the first row of an answer.
type replayRow struct{ r *replay }

func (o replayRow) Scan(dest ...any) error {
	rows := replayRows{o.r}
	if !rows.Next() {
		return pgx.ErrNoRows
	}
	return rows.Scan(dest...)
}

// replayRows are the rows of an answer.
type replayRows struct{ *replay }

func (r replayRows) Close()                                       { r.closed = true }
func (r replayRows) Err() error                                   { return r.err }
func (r replayRows) CommandTag() pgconn.CommandTag                { return r.a.tag }
func (r replayRows) FieldDescriptions() []pgconn.FieldDescription { return r.a.of }

// the connection is not the caller's
func (r replayRows) Conn() *pgx.Conn      { return nil }
func (r replayRows) TypeMap() *pgtype.Map { return r.conn.TypeMap() }

func (r replayRows) Next() bool {
	if r.closed || r.next == len(r.a.rows) {
		r.closed = true
		return false
	}
	r.next++
	return true
}

// RawValues returns the columns of the current row.
func (r replayRows) RawValues() [][]byte {
	if r.closed || r.next == 0 {
		return nil
	}
	return r.a.rows[r.next-1]
}

func (r replayRows) Scan(dest ...any) error {
	raw := r.RawValues()
	if raw == nil {
		return r.fail(errNoRow)
	}
	if len(dest) == 1 {
		if scanner, ok := dest[0].(pgx.RowScanner); ok { // it takes a whole row
			return r.fail(scanner.ScanRow(r))
		}
	}
	return r.fail(pgx.ScanRow(r.conn.TypeMap(), r.a.of, raw, dest...))
}

var errNoRow = errors.New("ratelimit: no row: Next was not called, or has returned false")

func (r replayRows) Values() ([]any, error) {
	raw := r.RawValues()
	if raw == nil {
		return nil, errNoRow
	}
	types := r.conn.TypeMap()
	values := make([]any, len(raw))
	for i, column := range raw {
		of := r.a.of[i]
		known, ok := types.TypeForOID(of.DataTypeOID)
		switch {
		case column == nil:
		case ok:
			value, err := known.Codec.DecodeValue(types, of.DataTypeOID, of.Format, column)
			if err != nil {
				return nil, r.fail(err)
			}
			values[i] = value
		case of.Format == pgx.TextFormatCode:
			values[i] = string(column)
		default:
			values[i] = column
		}
	}
	return values, nil
}

// fail keeps the first error, and closes the rows.
func (r replayRows) fail(err error) error {
	if err != nil && r.err == nil {
		r.err, r.closed = err, true
	}
	return err
}
