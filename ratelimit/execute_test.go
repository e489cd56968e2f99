package ratelimit

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// tooLate answers all statements, and then an error, as Postgres does if a statement_timeout is over
// just before COMMIT.
type tooLate struct{ pgx.BatchResults }

func (tooLate) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return tooLate{} }
func (tooLate) Exec() (pgconn.CommandTag, error)                       { return pgconn.NewCommandTag("COMMIT"), nil }
func (tooLate) Close() error                                           { return errLate }

var errLate = &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "57014"}

// A transaction whose COMMIT was answered has committed. To run it again would take twice.
func TestAnErrorAfterCommitIsNotTheTransactions(t *testing.T) {
	t.Parallel()
	begin, commit := &statement{sql: beginTogetherSQL}, &statement{sql: commitSQL}
	if _, err := sendBatch(t.Context(), tooLate{}, []*statement{begin, commit}); err != nil {
		t.Errorf("%v, though COMMIT was answered", err)
	}
	if _, err := sendBatch(t.Context(), tooLate{}, []*statement{begin}); !errors.Is(err, errLate) {
		t.Errorf("%v, want the error of a transaction that goes on", err)
	}
}

// The same goes for SendBatch.
func TestAnErrorAfterTheCommitOfSendBatch(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{false, true} {
		if _, err := new(sending).readAll(tooLate{}, nil, nil, marked); err != nil {
			t.Errorf("marked %v: %v, though COMMIT was answered", marked, err)
		}
	}
}
