// Weir looks after the limits of package ratelimit in a Postgres database: it migrates, shows what
// is left of each, resets, pauses and prunes, tells what a River job waits for, and finds out what
// is wrong. See docs/cli.md.
//
//	go install github.com/weir-go/weir/cmd/weir@latest
//	weir --database postgres://localhost/app limits
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// What the exit status says.
const (
	exitOK     = 0
	exitFailed = 1 // or something is wrong
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second one kills
	os.Exit(run(ctx, osEnv(), os.Args[1:]))
}

// run is the whole command, and returns its exit status.
func run(ctx context.Context, e *env, args []string) int {
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(e.in)
	root.SetOut(e.out)
	root.SetErr(e.err)
	err := root.ExecuteContext(ctx)
	if err == nil && e.lost != nil {
		err = fmt.Errorf("write the answer: %w", e.lost)
	}
	var wrong *wrongError
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wrong): // was told
		return exitFailed
	case !e.started || errors.As(err, &usage):
		e.askf("weir: %s\n", redact(err.Error()))
		e.askf("%s\n", `weir: "weir help" tells what there is`)
		return exitUsage
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	e.askf("weir: %s\n", redact(err.Error()))
	return exitFailed
}

// wrongError says that the answer, which has been written, is that something is wrong.
type wrongError struct{}

func (*wrongError) Error() string { return "something is wrong" }

// usageError is a command that was called in a wrong way.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }
