package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/term"
)

// env is what the command has around it, and its flags.
type env struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	now      func() time.Time
	local    func(*pgx.ConnConfig) bool // says that a database is on this machine

	inTerm, outTerm, errTerm bool // which of them is a terminal
	width                    int  // of that of out, in cells; 0: not known

	database, schema string
	json, yes        bool

	started bool  // the command line was understood
	lost    error // what could not be written to out
}

// sayf writes to out, and remembers if that fails.
func (e *env) sayf(format string, args ...any) {
	if _, err := fmt.Fprintf(e.out, format, args...); err != nil && e.lost == nil {
		e.lost = err
	}
}

// askf writes to err: questions, progress and what went wrong.
func (e *env) askf(format string, args ...any) { _, _ = fmt.Fprintf(e.err, format, args...) }

func osEnv() *env {
	e := &env{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, now: time.Now,
		local: local}
	e.inTerm, e.outTerm, e.errTerm = term.IsTerminal(int(os.Stdin.Fd())),
		term.IsTerminal(int(os.Stdout.Fd())),
		term.IsTerminal(int(os.Stderr.Fd()))
	if e.outTerm {
		e.width, _, _ = term.GetSize(int(os.Stdout.Fd()))
	}
	return e
}

// plain says that nothing may be written but ASCII without colours: for files, pipes and terminals
// that have asked for it.
func (e *env) plain() bool {
	if !e.outTerm || e.getenv("NO_COLOR") != "" || e.getenv("TERM") == "dumb" {
		return true
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(e.getenv(name)); v != "" {
			return !strings.Contains(v, "utf-8") && !strings.Contains(v, "utf8")
		}
	}
	return true
}

var inURL = regexp.MustCompile(`(?s)://.*@`)
var inPairs = regexp.MustCompile(`(?is)password\s*=.*`)

// redact takes passwords out of an error that repeats arguments of the command line: one of them
// may be a connection string in the wrong place. Nobody knows where a password ends that is not
// well written, so redact takes out all up to the last @, or to the end.
func redact(text string) string {
	text = inURL.ReplaceAllString(text, "://xxxxx@")
	return inPairs.ReplaceAllString(text, "password=xxxxx")
}
