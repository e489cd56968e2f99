// Visitors is a site without accounts that allows each visitor so many requests a minute. An
// address is shared by many, and a cookie is dropped for nothing, so what is counted is a session,
// signed by the server, and sessions cost: an address has some for nothing, and each one more takes
// a solved challenge. Run without flags it drives itself by real HTTP requests and tells what
// happens.
//
//	go run ./examples/visitors
//	go run ./examples/visitors -serve 127.0.0.1:8080
//
// Postgres is found or downloaded: see internal/test/pgserver.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

func main() {
	serve := flag.String("serve", "", "serve on this address until stopped, in place of the demo")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *serve)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "visitors:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, serve string) (err error) {
	server, err := pgserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	pool, err := open(ctx, server.URL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop(pool)) }()
	limiter, err := ratelimit.New(ratelimit.Config{RememberDenials: true})
	if err != nil {
		return err
	}
	coalesced := limiter.Coalesce(pool)
	defer coalesced.Close()

	// of your configuration, or no session outlives the process, nor is known to others
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	k, err := newKeys(key)
	if err != nil {
		return err
	}
	addr, address := serve, httplimit.ByAddress()
	if serve == "" { // the story plays a proxy, to come from several addresses
		addr, address = "127.0.0.1:0", httplimit.ByAddress(netip.MustParsePrefix("127.0.0.0/8"))
	}
	v := newVisitors(coalesced, define(requests, sessions), k, address)
	v.secure = false // it is served without TLS

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: v.handler(http.HandlerFunc(site)),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16_000}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	url := "http://" + listener.Addr().String()
	var told error
	if serve == "" {
		told = (&story{out: os.Stdout, url: url, pool: pool}).tell(ctx)
	} else {
		fmt.Printf("serving on %s\n  curl -c jar -X POST %[1]s/session && curl -b jar -i %[1]s\n",
			url)
		if told = pruneHourly(ctx, limiter, pool, served); ctx.Err() == nil {
			return told
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(told, web.Shutdown(ctx))
}

// pruneHourly deletes the rows of visitors who have gone. It returns when ctx ends, or the server
// does.
func pruneHourly(
	ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, served <-chan error,
) error {
	for {
		select {
		case <-time.After(time.Hour):
			if _, err := limiter.Prune(ctx, pool, ratelimit.PruneConfig{}); err != nil {
				slog.Error("prune", "error", err) // the next one may do better
			}
		case <-ctx.Done():
			return nil
		case err := <-served:
			return err
		}
	}
}

// The numbers of the story.
const (
	requests = 5 // a minute, for a session
	sessions = 3 // an hour, for an address
)

func site(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }

// open makes a schema of the demo's own, so that it may run on a database in use.
func open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	name := "weir_demo_visitors_" + strings.ToLower(rand.Text()[:8])
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := schema.Migrate(ctx, pool, schema.In(name)); err != nil {
		return nil, errors.Join(err, drop(pool))
	}
	return pool, nil
}

func drop(pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	name := pool.Config().ConnConfig.RuntimeParams["search_path"]
	_, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
	pool.Close()
	return err
}
