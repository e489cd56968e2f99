package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

type stateError string // an error of another driver

func (e stateError) Error() string    { return "state " + string(e) }
func (e stateError) SQLState() string { return string(e) }

func TestConflictsAreTheErrorsThatAnotherAttemptMayMend(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"40001": true, "40P01": true, "26000": true, "40003": false, "40002": false, "23505": false, "55P03": false, "": false,
	} {
		for _, err := range []error{
			&pgconn.PgError{Code: code}, fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code}), stateError(code),
		} {
			if got := isConflict(err); got != want {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
	if isConflict(nil) || isConflict(io.EOF) {
		t.Error("an error without a state is no conflict")
	}
}

// A backend that was ended while it committed may have committed.
func TestOnlyAPlainErrorAtCommitMeansRolledBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23503"}, true},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40003"}, false},
		{&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, false},
		{&pgconn.PgError{SeverityUnlocalized: "PANIC", Code: "XX000"}, false},
		{&pgconn.PgError{Severity: "ERROR", Code: "23503"}, false}, // localized: it could be anything
		{io.ErrUnexpectedEOF, false},
	} {
		if got := isRolledBack(tc.err); got != tc.want {
			t.Errorf("%+v: %v", tc.err, got)
		}
	}
}

// On Citus a node that could not be reached has done nothing. One that was lost may have committed.
func TestALostNodeMayHaveCommitted(t *testing.T) {
	t.Parallel()
	const node = "connection to the remote node postgres@10.0.0.2:5432 failed"
	for _, tc := range []struct {
		code, message string
		rolledBack    bool
	}{
		{"XX000", "could not commit transaction for shard 102008 on at least one active node", false},
		{"XX000", "server closed the connection unexpectedly", false},
		{"57P01", "terminating connection due to administrator command", false},
		{"08006", node, false},
		{"08006", node + " with the following error: connection not open", false},
		{"08006", node + " with the following error: server closed the connection unexpectedly\n\tThis probably means", false},
		{"08006", node + " with the following error: could not receive data from server: Connection timed out", false},
		{"08006", "connection establishment for node 10.0.0.2:5432 failed", false}, // also said of established ones
		{"08006", node + " with the following error: FATAL:  terminating connection due to administrator command", false},
		{"08006", node + " with the following error: Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", true},
		{"08006", node + " with the following error: FATAL:  the database system is starting up", true},
		{"08006", node + ` with the following error: connection to server at "10.0.0.2", port 5432 failed: Connection refused`, true},
		{"08006", "could not establish any connections to the node 10.0.0.2:5432 after 30000 ms", true},
	} {
		err := fmt.Errorf("take: %w",
			&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: tc.code, Message: tc.message})
		if got := isRolledBack(err); got != tc.rolledBack {
			t.Errorf("%s: rolled back: %v", tc.message, got)
		}
		for in, got := range map[string]error{"alone": committed(err, []*statement{{c: new(call)}}), "InTx": (&attempt{}).committed("InTx", err)} {
			if !errors.Is(got, err) || errors.Is(got, ErrOutcomeUnknown) == tc.rolledBack {
				t.Errorf("%s: %s: %v", in, tc.message, got)
			}
		}
	}
}

func TestUnknownOutcomeSaysSoAndKeepsItsCause(t *testing.T) {
	t.Parallel()
	err := unknown(io.ErrUnexpectedEOF)
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrConflict) {
		t.Error(err)
	}
}

func TestErrorsOfPostgresAreExplained(t *testing.T) {
	t.Parallel()
	calls := resolved(t, apples.For("x"), pears.For("x"), pears.For("y"))
	for code, hint := range map[string]string{
		"42P01": "schema.Migrate", "42883": "schema.Migrate", "3F000": "Config.Schema",
		"42501": "grant", "25P02": "roll back", "25006": "primary",
		"53200": "max_pred_locks_per_transaction", "0A000": "primary",
	} {
		cause := &pgconn.PgError{Code: code, Message: "as Postgres says of a hot standby"}
		err := explain(t.Context(), cause, "take", calls)
		var back *pgconn.PgError
		if !errors.As(err, &back) || back != cause {
			t.Errorf("%s: the cause is lost: %v", code, err)
		}
		text := err.Error()
		if !strings.HasPrefix(text, `ratelimit: take limit "apples" and 2 more: `) ||
			!strings.Contains(text, "as Postgres says") || !strings.Contains(text, hint) {
			t.Errorf("%s: %s", code, text)
		}
	}
	if got, want := explain(t.Context(), io.EOF, "reset", calls[:1]).
		Error(), `ratelimit: reset limit "apples": EOF`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := explain(ended, io.EOF, "take", calls); !errors.Is(err, context.Canceled) || !errors.Is(err, io.EOF) {
		t.Errorf("%v does not say that the context had ended", err)
	}
}
