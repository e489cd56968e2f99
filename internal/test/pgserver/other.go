//go:build !unix

package pgserver

import (
	"context"
	"errors"
	"os"
)

// Server is a running Postgres server.
type Server struct{ url string }

var errForeign = errors.New("pgserver: the server of DATABASE_URL is not ours to stop")

// Start uses the server that DATABASE_URL names.
func Start(context.Context, ...Option) (*Server, error) {
	if u := os.Getenv("DATABASE_URL"); u != "" {
		return &Server{u}, nil
	}
	return nil, errors.New(
		"pgserver: a server of our own needs a Unix; here, name one that runs in DATABASE_URL",
	)
}

// URL is what to connect to.
func (s *Server) URL() string { return s.url }

// Bin is the name of one of Postgres' programs, which exec looks up on PATH.
func (s *Server) Bin(program string) string { return program }

// Stop does nothing: the server is not ours.
func (s *Server) Stop() error { return nil }

// Standby fails: the server is not ours.
func (s *Server) Standby(context.Context, ...Option) (*Server, error) { return nil, errForeign }

// Promote fails: the server is not ours.
func (s *Server) Promote(context.Context) error { return errForeign }

// Kill fails: the server is not ours.
func (s *Server) Kill() error { return errForeign }

// Shutdown fails: the server is not ours.
func (s *Server) Shutdown(string) error { return errForeign }

// Restart fails: the server is not ours.
func (s *Server) Restart(context.Context) error { return errForeign }

// Cluster is a Citus cluster.
type Cluster []*Server

// StartCluster does not work here.
func StartCluster(context.Context, string, ...Option) (Cluster, error) { return nil, errForeign }

// Stop does nothing.
func (Cluster) Stop() error { return nil }
