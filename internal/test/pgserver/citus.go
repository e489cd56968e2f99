//go:build unix

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Cluster is a Citus cluster of servers of its own. The first is the coordinator, which has no
// shards.
type Cluster []*Server

// StartCluster starts a coordinator and two workers. bin is the folder with a server that has
// Citus.
func StartCluster(ctx context.Context, bin string, opts ...Option) (_ Cluster, err error) {
	if bin, err = check(bin); err != nil {
		return nil, fmt.Errorf("pgserver: cluster: %w", err)
	}
	o := options{password: rand.Text()}
	for _, opt := range append([]Option{
		Env("PGPASSWORD=" + o.password), // with which the nodes connect to each other
		Setting("shared_preload_libraries", "citus"), Setting("wal_level", "logical"),
		Setting("max_prepared_transactions", "300"),
		Setting("max_connections", "500"), Setting("jit", "off"),
		Setting("citus.local_hostname", "127.0.0.1"),
		Setting("citus.node_conninfo", "sslmode=disable"),
		Setting("citus.enable_statistics_collection", "off"),
	}, opts...) {
		opt(&o)
	}
	var c Cluster
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("pgserver: cluster: %w", err), c.Stop())
		}
	}()
	for n := range 3 {
		node := o
		node.settings, node.env = slices.Clip(o.settings), slices.Clip(o.env)
		for _, opt := range o.nodes[n] {
			opt(&node)
		}
		s, err := create(ctx, bin, nil, &node)
		if err != nil {
			return nil, err
		}
		c = append(c, s)
		if err := s.exec(ctx, `CREATE EXTENSION citus`); err != nil {
			return nil, err
		}
	}
	err = c[0].exec(ctx, fmt.Sprintf(`SELECT citus_set_coordinator_host('127.0.0.1', %d)`,
		c[0].port),
		fmt.Sprintf(`SELECT citus_add_node('127.0.0.1', %d)`, c[1].port),
		fmt.Sprintf(`SELECT citus_add_node('127.0.0.1', %d)`, c[2].port),
		fmt.Sprintf(`SELECT citus_set_node_property('127.0.0.1', %d, 'shouldhaveshards', false)`,
			c[0].port))
	return c, err
}

// Stop is that of each server.
func (c Cluster) Stop() error {
	var all error
	for _, s := range c {
		all = errors.Join(all, s.Stop())
	}
	return all
}

func (s *Server) exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
