// The program shards measures what docs/shards.md advises, on a Postgres of its own, and writes the
// page's tables and its picture:
//
//	go run ./shards -docs ../docs
//
// It takes three to five minutes. Everything in them is of one run.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/bench/internal/page"
	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/shardload"
	"github.com/weir-go/weir/schema"
)

// What is varied.
var (
	shardNumbers  = []int{1, 4, 16, 64}
	callerNumbers = []int{1, 4, 16, 64}
)

func main() {
	log.SetFlags(log.Ltime)
	docs := flag.String(
		"docs", "", "the folder of shards.md and shards.svg; none: print the tables",
	)
	rounds := flag.Int("rounds", 16, "of slices of throughput")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *docs, *rounds)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, docs string, rounds int) (err error) {
	server, err := pgserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if stopped := server.Stop(); err == nil {
			err = stopped
		}
	}()
	var m machine
	looks := new(shardload.Looks)
	cfg, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return err
	}
	most := callerNumbers[len(callerNumbers)-1]
	cfg.MaxConns = int32(most) + 1
	cfg.ConnConfig.Tracer = looks
	// the disk's time would hide all else
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil {
		return err
	}
	if err := pool.QueryRow(ctx, `SHOW server_version`).Scan(&m.postgres); err != nil {
		return err
	}
	conns := make([]*pgxpool.Conn, most)
	for i := range conns {
		if conns[i], err = pool.Acquire(ctx); err != nil {
			return err
		}
		defer conns[i].Release()
	}

	began := time.Now()
	log.Println("throughput")
	t, err := measureThroughput(ctx, pool, conns, looks, rounds)
	if err != nil {
		return fmt.Errorf("throughput: %w", err)
	}
	log.Println("denials")
	d, err := measureDenials(ctx, conns, looks)
	if err != nil {
		return fmt.Errorf("denials: %w", err)
	}
	tables := map[string]string{"throughput": t.table(), "denials": d.table(),
		"machine": m.String()}
	log.Printf("done in %v", time.Since(began).Round(time.Second))
	if docs == "" {
		for _, name := range []string{"machine", "throughput", "denials"} {
			fmt.Printf("%s\n", tables[name])
		}
		return nil
	}
	if err := drawThroughput(filepath.Join(docs, "shards.svg"), t); err != nil {
		return err
	}
	return page.Fill(filepath.Join(docs, "shards.md"), tables)
}

// machine is what the figures were measured on.
type machine struct{ postgres string }

func (m machine) String() string {
	version, _, _ := strings.Cut(m.postgres, " ") // what follows is the packager's
	return fmt.Sprintf("Measured on %s, on %d cores that other programs used as well (%s/%s), with Postgres %s and %s, all on one\nmachine, by `make bench/shards`.\n",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH,
		version, runtime.Version())
}
