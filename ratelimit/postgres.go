package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/pgerr"
)

func stateOf(err error) string { return pgerr.State(err) }

const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"

	// invalid_sql_statement_name: the connection has lost a prepared statement that pgx lists. pgx
	// (v5.10) remembers a statement that it could not prepare, as it does in a transaction that has
	// failed, and closes it later on, even if a batch has prepared it since. It prepares a statement
	// again after this error.
	statementLost = "26000"
)

// conflict is an error of ours after which a transaction may succeed if it runs again, as after a
// serialization failure.
type conflict string

func (c conflict) Error() string  { return "ratelimit: " + string(c) }
func (conflict) SQLState() string { return serializationFailure }

// isConflict reports whether another attempt at the whole transaction may succeed.
func isConflict(err error) bool {
	s := stateOf(err)
	return s == serializationFailure || s == deadlockDetected || s == statementLost
}

// isLostRow reports whether err says that another transaction has written the row first. Postgres
// also raises 40001 for reads that cannot be serialized, from predicate.c: that is no conflict on
// the row.
func isLostRow(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == serializationFailure && e.File != "predicate.c"
}

// isRolledBack reports whether err, an answer to COMMIT or to statements sent together with it,
// means that the transaction was rolled back. A backend that ended during COMMIT (FATAL, PANIC) may
// have committed first. On Citus an ordinary ERROR may say that the coordinator lost a node, which
// may have committed, too. A node that could not be reached has not.
func isRolledBack(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.SeverityUnlocalized != "ERROR" {
		return false
	}
	switch {
	case e.Code == "40003", e.Code == "XX000", strings.HasPrefix(e.Code, "57P"):
		return false // statement_completion_unknown, internal_error, an operator's intervention
	case strings.HasPrefix(e.Code, "08"):
		return isUnreachable(e)
	}
	return true
}

// isUnreachable reports whether Citus could not connect to the node of a row, and has sent it
// nothing.
func isUnreachable(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && strings.HasPrefix(e.Code, "08") && unreachable.MatchString(e.Message)
}

// unreachable matches what Citus says if a node could not connect to another one, and so has sent
// it nothing. If a connection breaks while a statement is under way, the message begins in the same
// way. The rest is the error of libpq.
var unreachable = regexp.MustCompile(`^could not establish any connections to the node ` +
	`|^connection to the remote node .* failed with the following error: ` +
	`(connection to server |FATAL:  the database system is |.*\n\tIs the server running )`)

func unknown(err error) error {
	return fmt.Errorf("%w: all of the transaction was committed or none of it, so look for its writes before you retry: %w",
		ErrOutcomeUnknown, err)
}

// hints say how to fix errors of Postgres that users of a limiter are likely to see, in addition to
// those of package pgerr.
var hints = map[string]string{
	"42883": pgerr.NotMigrated, // undefined_function

	serializationFailure: runAgain,
	deadlockDetected:     runAgain,
	statementLost:        "repeat the call, and pgx prepares the statement again; if it fails again, a pooler in between keeps no prepared statements: use pgx.QueryExecModeExec",

	"25P02": "an earlier statement of this transaction failed; look at its error and roll back",
	"25006": "limits are taken by writing: use the primary, and no read-only transaction",
	"53200": "predicate locks ran out: somebody holds a SERIALIZABLE transaction open for long, or max_pred_locks_per_transaction is too low",
	"0A000": "limits need the primary; a hot standby takes neither writes nor SERIALIZABLE",
}

const runAgain = "another transaction was in the way: run this one again from its start, as InTx does"

func hint(err error) error {
	if stateOf(err) == "0A000" && !strings.Contains(err.Error(), "standby") {
		return err // Postgres has many features that are not supported
	}
	return pgerr.Hint(err, hints)
}

// ended adds the error of a context that has ended: it is the cause of the driver's error, which
// may not mention it.
func ended(ctx context.Context, err error) error {
	if done := ctx.Err(); done != nil && !errors.Is(err, done) {
		return fmt.Errorf("%w: %w", done, err)
	}
	return err
}

// explain adds to err what was being done, for which limits, and a hint.
func explain(ctx context.Context, err error, verb string, calls []call) error {
	err = ended(ctx, err)
	of := fmt.Sprintf("limit %q", calls[0].Name)
	if n := len(calls) - 1; n > 0 {
		of += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("ratelimit: %s %s: %w", verb, of, hint(err))
}
