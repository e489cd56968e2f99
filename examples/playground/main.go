// Playground is limits to play with in the browser: fire calls, alone or many, and watch what
// becomes of the balance, of those who are denied, and of the jobs that are reserved ahead. The
// picture is package dashboard, as a program of yours would mount it; the rest of the page is this
// example's.
//
//	go run ./examples/playground -serve 127.0.0.1:8080
//
// Postgres is found or downloaded: see internal/test/pgserver.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/test/pgserver"
)

func main() {
	serve := flag.String("serve", "127.0.0.1:8080",
		"serve on this address until stopped; anybody who reaches it may play")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *serve, func(url string) { fmt.Println("play at", url) })
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It tells where, once it does.
func run(ctx context.Context, addr string, tell func(url string)) (err error) {
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
	p, err := start(ctx, pool)
	if err != nil {
		return err
	}
	defer p.stop()

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	h, err := p.handler(listener.Addr().String())
	if err != nil {
		return err
	}
	web := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:  10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	tell("http://" + listener.Addr().String() + "/")
	select {
	case <-ctx.Done():
	case err := <-served:
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return web.Shutdown(ctx)
}
