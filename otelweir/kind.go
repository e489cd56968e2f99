package otelweir

import (
	"context"
	"errors"
	"io"
	"net"
	"os"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/ratelimit"
)

// kind is a kind of error: there are few, whatever the errors say.
type kind int

const (
	outcomeUnknown kind = iota
	invalid
	nested
	closed
	overloaded
	conflict
	canceled
	timeout
	database
	connection
	unknown
	kinds
)

func (k kind) String() string {
	return [...]string{"outcome_unknown", "invalid", "nested", "closed", "overloaded", "conflict",
		"canceled", "timeout", "database",
		"connection", "_OTHER"}[k]
}

var matches = [...]struct {
	kind kind
	err  error
}{
	// first: it stands for what has ended the connection
	{outcomeUnknown, ratelimit.ErrOutcomeUnknown},
	{invalid, ratelimit.ErrInvalid},
	{nested, ratelimit.ErrNested},
	{closed, ratelimit.ErrClosed},
	{overloaded, ratelimit.ErrOverloaded},
	{canceled, context.Canceled}, // before conflict: it has ended a call that had met one
	{timeout, context.DeadlineExceeded},
	{timeout, os.ErrDeadlineExceeded},
	{conflict, ratelimit.ErrConflict},
}

// kindOf is that of an error, or unknown for none.
func kindOf(err error) kind {
	if err == nil {
		return unknown
	}
	for _, m := range matches {
		if errors.Is(err, m.err) {
			return m.kind
		}
	}
	var server *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &connect):
		// also if the server itself refuses: it starts up, or has no more connections
		return connection
	case errors.As(err, &server) && (server.Code == "40001" || server.Code == "40P01"):
		return conflict
	case server != nil:
		return database
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed),
		pgconn.SafeToRetry(err): // it had been closed before
		return connection
	}
	return unknown
}
