package faults

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/ratelimit"
)

// class is what an error means to a caller.
type class string

const (
	open     class = ""           // no answer yet; of a process that was killed, for ever
	granted  class = "granted"    // nil
	denied   class = "denied"     // ErrDenied
	unknown  class = "unknown"    // ErrOutcomeUnknown
	conflict class = "conflict"   // ErrConflict: gave up
	away     class = "away"       // the server or the connection is gone
	canceled class = "canceled"   // by statement_timeout or pg_cancel_backend
	locked   class = "locked"     // by lock_timeout
	readOnly class = "read-only"  // the database takes no writes
	gaveUp   class = "gave up"    // the caller's own context has ended
	stale    class = "stale"      // a prepared statement is not there: pgx forgets one whose preparation was canceled
	mistaken class = "unexpected" // anything else is a bug
)

// final says that the caller may rely on that nothing was committed.
func (c class) final() bool { return c != open && c != granted && c != unknown }

func classify(err error) class {
	var pg *pgconn.PgError
	isDenied := errors.Is(err, ratelimit.ErrDenied)
	switch {
	case err == nil:
		return granted
	case errors.Is(err, ratelimit.ErrInvalid), errors.Is(err, ratelimit.ErrNested),
		errors.Is(err, ratelimit.ErrNoDecision):
		return mistaken
	case errors.Is(err, ratelimit.ErrOutcomeUnknown):
		if isDenied || errors.Is(err, ratelimit.ErrConflict) {
			return mistaken
		}
		return unknown
	case isDenied:
		if errors.As(err, &pg) {
			return mistaken
		}
		return denied
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, os.ErrDeadlineExceeded):
		// Between two attempts it is a conflict, too. The third is what pgx makes of the second if it
		// comes while it writes.
		return gaveUp
	case errors.Is(err, ratelimit.ErrConflict):
		return conflict
	case errors.As(err, &pg):
		return classOfState(pg.Code)
	case lost(err):
		return away
	}
	return mistaken
}

func classOfState(code string) class {
	switch code {
	case "57P01", "57P02", "57P03": // admin_shutdown, crash_shutdown, cannot_connect_now
		return away
	case "57014":
		return canceled
	case "55P03":
		return locked
	case "25006":
		return readOnly
	case "26000":
		return stale
	}
	return mistaken
}

func lost(err error) bool {
	var network net.Error
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNREFUSED,
		syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, &network) || strings.Contains(err.Error(), "conn closed") ||
		strings.Contains(err.Error(), "the connection was lost before COMMIT") // these two have no type
}
