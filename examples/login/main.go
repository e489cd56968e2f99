// Login is a sign-in that parallel guesses cannot pass: each attempt is charged and committed
// before the password is checked, a right one gives its charge back, and each lock is longer than
// the one before it. Run without flags it drives itself by real HTTP requests and tells what
// happens.
//
//	go run ./examples/login
//	go run ./examples/login -serve 127.0.0.1:8080
//
// Postgres is found or downloaded: see internal/test/pgserver.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/schema"
)

func main() {
	serve := flag.String(
		"serve", "",
		"serve on this address until stopped, in place of the demo: alice / correct horse, bob / battery staple",
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *serve)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "login:", err)
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

	cfg, addr := lockout.Config{}, serve
	if serve == "" {
		cfg, addr = brief, "127.0.0.1:0"
	}
	a := &accounts{pool: pool, iterations: 200_000}
	for name, password := range map[string]string{"alice": "correct horse",
		"bob": "battery staple"} {
		if err := a.add(ctx, name, password); err != nil {
			return err
		}
	}
	var hashes atomic.Int64
	s, err := newSignIn(pool, cfg,
		func(ctx context.Context, account, password string) (bool, error) {
			hashes.Add(1)
			return a.check(ctx, account, password)
		})
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	web := newServer(handler(s, slog.Default()))
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	url := "http://" + listener.Addr().String()
	var told error
	if serve == "" {
		told = (&story{out: os.Stdout, url: url, http: &http.Client{Timeout: time.Minute},
			hashes: hashes.Load}).tell(ctx)
	} else {
		fmt.Println("serving on", url)
		select {
		case <-ctx.Done():
		case err := <-served:
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(told, web.Shutdown(ctx))
}

// open makes a schema of the demo's own, so that it may run on a database in use.
func open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	name := "weir_demo_login_" + strings.ToLower(rand.Text()[:8])
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := schema.Migrate(ctx, pool, schema.In(name)); err != nil {
		return nil, errors.Join(err, drop(pool))
	}
	if _, err := pool.Exec(ctx, accountTables); err != nil {
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
