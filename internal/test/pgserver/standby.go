//go:build unix

package pgserver

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Standby starts a hot standby of this server, by pg_basebackup and streaming replication. It is a
// server of its own, with its own Stop. It takes the options of the primary only if they are given
// again.
//
// With Setting("synchronous_standby_names", "*") the primary waits for its standby at every COMMIT,
// and so before there is one.
func (s *Server) Standby(ctx context.Context, opts ...Option) (*Server, error) {
	if s.supervisor == nil {
		return nil, errForeign
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	standby, err := create(ctx, s.bin, s, &o)
	if err != nil {
		return nil, fmt.Errorf("pgserver: standby: %w", err)
	}
	return standby, nil
}

// Promote makes a standby a primary. It returns when the server takes writes.
func (s *Server) Promote(ctx context.Context) error {
	if s.supervisor == nil {
		return errForeign
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("pgserver: promote: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var promoted bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote(true, $1)", int(timeout.Seconds())).
		Scan(&promoted); err != nil {
		return fmt.Errorf("pgserver: promote: %w", err)
	}
	if !promoted {
		return fmt.Errorf("pgserver: promote: the standby did not become a primary within %v%s",
			timeout, s.supervisor.logs())
	}
	return nil
}

// conninfo is what a standby connects to. The password goes apart.
func (s *Server) conninfo() string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres sslmode=disable", s.port)
}
