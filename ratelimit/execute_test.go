package ratelimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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

// sleeper is a statement that takes so long, as a row is held.
type sleeper time.Duration

func (d sleeper) send(ctx context.Context, _ []*statement) error { return rest(ctx, time.Duration(d)) }

// What has been begun is ended even if the caller's context has ended, for five seconds. It waits
// for held rows as long as that context does.
func TestTheSecondTripLastsLongerThanItsContext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ctx, trip time.Duration
		err       error
	}{
		"as long as its context": {time.Hour, time.Minute, nil},
		"a little longer":        {time.Second, 5 * time.Second, nil},
		"much longer":            {time.Second, 7 * time.Second, context.Canceled},
		"it has ended":           {0, 4 * time.Second, nil},
		"it has ended for long":  {0, 6 * time.Second, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.ctx)
				defer cancel()
				x := executor{to: sleeper(tc.trip), stepwise: true, ends: true}
				if err := x.run(ctx, nil); !errors.Is(err, tc.err) {
					t.Errorf("%v, want %v", err, tc.err)
				}
			})
		})
	}
}
