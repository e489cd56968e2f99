//go:build !unix

package pgserver

import (
	"context"
	"errors"
	"os"
)

// Server is a running Postgres server.
type Server struct{ url string }

// Start uses the server that DATABASE_URL names.
func Start(context.Context, ...Option) (*Server, error) {
	if u := os.Getenv("DATABASE_URL"); u != "" {
		return &Server{u}, nil
	}
	return nil, errors.New("pgserver: a server of our own needs a Unix; here, name one that runs in DATABASE_URL")
}

// URL is what to connect to.
func (s *Server) URL() string { return s.url }

// Stop does nothing: the server is not ours.
func (s *Server) Stop() error { return nil }
