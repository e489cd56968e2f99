package main

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/bench/internal/redisserver"
	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/schema"
)

// mostConns is what a pool has at most: on Postgres a connection is a process.
const mostConns = 32

// rig has the servers, and for each number of connections a pool to both.
type rig struct {
	places  map[int]place
	durable map[int]place  // with synchronous_commit = on
	closers []func() error // last first
}

func newRig(ctx context.Context) (_ *rig, err error) {
	r := &rig{places: map[int]place{}, durable: map[int]place{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	// Durable, as it would run in production: what is off is only that a COMMIT waits for the disk.
	pg, err := pgserver.Start(ctx, pgserver.Durable())
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, pg.Stop)
	rd, err := redisserver.Start(ctx)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, rd.Stop)
	cfg, err := pgxpool.ParseConfig(pg.URL())
	if err != nil {
		return nil, err
	}
	own := pgx.Identifier{"weir_bench_" + strings.ToLower(rand.Text()[:10])}.Sanitize()
	if err := r.schema(ctx, cfg, own); err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = own
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	for _, n := range callers {
		n = min(n, mostConns)
		if _, ok := r.places[n]; ok {
			continue
		}
		c := cfg.Copy()
		c.MaxConns = int32(n)
		pool, err := pgxpool.NewWithConfig(ctx, c)
		if err != nil {
			return nil, err
		}
		client := rd.Client(n)
		r.closers = append(r.closers, func() error { pool.Close(); return nil }, client.Close)
		r.places[n] = place{pool, client}
		c = c.Copy()
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "on"
		durable, err := pgxpool.NewWithConfig(ctx, c)
		if err != nil {
			return nil, err
		}
		r.closers = append(r.closers, func() error { durable.Close(); return nil })
		r.durable[n] = place{durable, client}
	}
	pool := r.at(1).pool
	if err := schema.Migrate(ctx, pool); err != nil {
		return nil, err
	}
	for _, sql := range []string{articleSQL, forUpdateSQL} {
		if _, err := pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// schema makes one of our own, that is dropped at the end, as a server named by DATABASE_URL is
// somebody else's.
func (r *rig) schema(ctx context.Context, cfg *pgxpool.Config, name string) error {
	server := cfg.ConnConfig.Copy() // before it has our search_path
	admin := func(ctx context.Context, sql string) error {
		conn, err := pgx.ConnectConfig(ctx, server)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, sql)
		return errors.Join(err, conn.Close(ctx))
	}
	if err := admin(ctx, "CREATE SCHEMA "+name); err != nil {
		return err
	}
	r.closers = append(r.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return admin(ctx, "DROP SCHEMA "+name+" CASCADE")
	})
	return nil
}

// at is the place for so many callers.
func (r *rig) at(callers int) place { return r.places[min(callers, mostConns)] }

// durableAt is the place at which a COMMIT waits for the disk.
func (r *rig) durableAt(callers int) place { return r.durable[min(callers, mostConns)] }

func (r *rig) close() (err error) {
	for i := len(r.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closers[i]())
	}
	r.closers = nil
	return err
}
