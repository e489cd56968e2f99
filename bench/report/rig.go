package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/bench/internal/redisserver"
	"github.com/weir-go/weir/internal/pgserver"
	"github.com/weir-go/weir/schema"
)

// mostConns is what a pool has at most: on Postgres a connection is a process.
const mostConns = 32

// rig has the servers, and for each number of connections a pool to both.
type rig struct {
	places  map[int]place
	closers []func() error // last first
}

func newRig(ctx context.Context) (_ *rig, err error) {
	r := &rig{places: map[int]place{}}
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

// schema makes one of our own, that is dropped at the end, as a server named by DATABASE_URL is somebody else's.
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

func (r *rig) close() (err error) {
	for i := len(r.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closers[i]())
	}
	r.closers = nil
	return err
}

// config is how long a run takes.
type config struct {
	warm, length, audit time.Duration
	rounds, keys        int
}

// bench measures all contenders in slices of time, over and over, as only what was measured at the same time can be compared
// on a machine that does other things as well: in each round all contenders follow each other in each setting, and each
// round begins with another.
type bench struct {
	config
	rig  *rig
	open map[string]map[setting]limiter
	many []string
}

func (b *bench) measure(ctx context.Context, all []contender) (f *figures, err error) {
	f, b.many, b.open = newFigures(all), numbered(b.keys), map[string]map[setting]limiter{}
	defer func() {
		for _, bySetting := range b.open {
			for _, l := range bySetting {
				err = errors.Join(err, l.close())
			}
		}
	}()
	for _, c := range all {
		b.open[c.name] = map[setting]limiter{}
		for s := range f.cells[c.name] {
			l, err := c.open(ctx, b.rig.at(s.callers), limitOf[s.workload])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			b.open[c.name][s] = l
		}
	}
	log.Println("keys")
	if err := b.fill(ctx, all); err != nil {
		return nil, err
	}
	for round := range b.rounds {
		for _, w := range workloads {
			for _, n := range callers {
				log.Printf("round %d of %d: %s, %d callers", round+1, b.rounds, w, n)
				for i := range all {
					if err := b.slice(ctx, f, all[(i+round*len(all)/b.rounds)%len(all)], setting{w, n}); err != nil {
						return nil, err
					}
				}
			}
		}
		log.Printf("round %d of %d: most are denied", round+1, b.rounds)
		for i := range all {
			if err := b.auditOf(ctx, f, all[(i+round*len(all)/b.rounds)%len(all)], round); err != nil {
				return nil, err
			}
		}
		s, err := load{1, b.many, b.warm, b.length}.run(ctx, nothing{})
		if err != nil {
			return nil, err
		}
		f.empty.add(s)
	}
	return f, nil
}

// fill makes the rows of the many keys, which a program that runs for long has.
func (b *bench) fill(ctx context.Context, all []contender) error {
	done := map[string]bool{"": true}
	for _, c := range all {
		if done[c.table] || c.oneKey {
			continue
		}
		done[c.table] = true
		if err := touch(ctx, b.open[c.name][setting{manyKeys, 64}], b.many, 64); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if _, err := b.rig.at(1).pool.Exec(ctx, "VACUUM ANALYZE "+c.table); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) slice(ctx context.Context, f *figures, c contender, s setting) error {
	cell, ok := f.cells[c.name][s]
	if !ok {
		return nil
	}
	keys := b.many
	if s.workload == oneKey {
		keys = []string{fmt.Sprintf("%s, %d callers", c.name, s.callers)}
	}
	did, err := load{s.callers, keys, b.warm, b.length}.run(ctx, b.open[c.name][s])
	if err != nil {
		return fmt.Errorf("%s, %s, %d callers: %w", c.name, s.workload, s.callers, err)
	}
	if s.workload == oneKey && did.granted == 0 {
		return fmt.Errorf("%s: a limit that is ample for all has granted nothing", c.name)
	}
	cell.add(did)
	return nil
}

func (b *bench) auditOf(ctx context.Context, f *figures, c contender, round int) error {
	l, err := c.open(ctx, b.rig.at(auditors), denying)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	did, err := load{auditors, []string{fmt.Sprintf("%s, audit %d", c.name, round)}, 0, b.audit}.run(ctx, l)
	if err = errors.Join(err, l.close()); err != nil {
		return fmt.Errorf("%s, most are denied: %w", c.name, err)
	}
	f.audits[c.name].add(did, denying)
	return nil
}
