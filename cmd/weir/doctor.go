package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
)

func newDoctor(e *env) *cobra.Command {
	p := &patient{}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong, and how to fix it",
		Long: `Checks the database: its settings, Weir's tables and how they are
stored, vacuum and what holds it back, the clock, privileges, keys whose callers
wait for each other, rows that are invalid, and rows that should be pruned. It
changes nothing.

Each finding comes with a fix. The exit status is 1 if something is wrong, and 0
if there are only notes.`,
		Example: `  weir doctor --role app    also check the privileges of the program's role`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("role") && p.role == "" {
				return usagef("--role is empty: want the name of a role")
			}
			return e.open(cmd.Context(), func(ctx context.Context, s *session) error {
				p.session = s
				return p.examine(ctx)
			})
		},
	}
	c.Flags().StringVar(&p.role, "role", "",
		"role whose privileges are checked (default: the one that connects)")
	c.Flags().DurationVar(&p.long, "long", 5*time.Minute, "how long a transaction may be open")
	c.Flags().DurationVar(&p.sample, "sample", time.Second,
		"how long to watch for callers that wait")
	return c
}

// level says how bad a finding is.
type level string

const (
	fine  level = "ok"
	note  level = "note" // worth to know
	wrong level = "wrong"
)

// finding is what a check has found.
type finding struct {
	Check string `json:"check"`
	Level level  `json:"level"`
	Found string `json:"found"`
	Fix   string `json:"fix,omitempty"`
}

// patient is a database that is looked at.
type patient struct {
	*session
	role         string
	long, sample time.Duration

	check    string // that is under way
	findings []finding
}

func (p *patient) find(l level, fix, format string, args ...any) {
	p.findings = append(p.findings, finding{p.check, l, fmt.Sprintf(format, args...), fix})
}

// table is the name of one of Weir's tables as it is written in SQL.
func (p *patient) table(name string) string { return pgx.Identifier{p.schema, name}.Sanitize() }

// checks are what is looked at, in this order. Those that need the tables are left out where there
// are none.
var checks = []struct {
	name   string
	tables bool
	look   func(ctx context.Context, p *patient) error
}{
	{"server", false, func(ctx context.Context, p *patient) error { return p.server(ctx) }},
	{"pooler", false, func(ctx context.Context, p *patient) error { return p.pooler(ctx) }},
	{"clock", false, func(ctx context.Context, p *patient) error { return p.clock(ctx) }},
	{"schema", false, func(ctx context.Context, p *patient) error { return p.versions(ctx) }},
	{"tables", true, func(ctx context.Context, p *patient) error { return p.tables(ctx) }},
	{"storage", true, func(ctx context.Context, p *patient) error { return p.storage(ctx) }},
	{"privileges", true, func(ctx context.Context, p *patient) error { return p.privileges(ctx) }},
	{"transactions", true, func(ctx context.Context, p *patient) error {
		return p.transactions(ctx)
	}},
	{"dead rows", true, func(ctx context.Context, p *patient) error { return p.deadRows(ctx) }},
	{"hot keys", true, func(ctx context.Context, p *patient) error { return p.hotKeys(ctx) }},
	{"balances", true, func(ctx context.Context, p *patient) error { return p.balances(ctx) }},
	{"settlements", true, func(ctx context.Context, p *patient) error {
		return p.settlements(ctx)
	}},
}

func (p *patient) examine(ctx context.Context) error {
	switch {
	case p.long <= 0:
		return usagef("--long is %v: want a duration above 0", p.long)
	case p.sample < 0 || p.sample > time.Hour:
		return usagef("--sample is %v: want a duration of an hour at the most", p.sample)
	}
	for _, c := range checks {
		if c.tables && p.schema == "" {
			continue
		}
		p.check = c.name
		before := len(p.findings)
		err := c.look(ctx, p)
		var usage *usageError
		switch {
		case ctx.Err() != nil: // also if this check was just done
			return cmp.Or(err, ctx.Err())
		case errors.As(err, &usage):
			return err
		case err != nil: // a role that may not look, say: the others go on
			p.find(note, "", "could not be looked at: %v", err)
		case len(p.findings) == before:
			p.find(fine, "", "nothing wrong")
		}
	}
	healthy := true
	for _, f := range p.findings {
		healthy = healthy && f.Level != wrong
	}
	if err := p.tell(healthy); err != nil {
		return err
	}
	if !healthy {
		return &wrongError{}
	}
	return nil
}

func (p *patient) tell(healthy bool) error {
	e := p.e
	if e.json {
		return e.writeJSON(struct {
			Healthy  bool      `json:"healthy"`
			Schema   string    `json:"schema"`
			Findings []finding `json:"findings"`
		}{healthy, p.schema, p.findings})
	}
	width := 110
	if e.width > 40 {
		width = min(width, e.width)
	}
	const left = 7 + 14
	for _, f := range p.findings {
		c := map[level]colour{fine: green, note: yellow, wrong: red}[f.Level]
		e.sayf("%s %s", e.paint(c, fmt.Sprintf("%-6s", f.Level)), fmt.Sprintf("%-14s", f.Check))
		text := f.Found
		if f.Fix != "" {
			text += "\nFix: " + f.Fix
		}
		for i, line := range wrap(text, width-left) {
			if i > 0 {
				e.sayf("%s", strings.Repeat(" ", left))
			}
			e.sayf("%s\n", line)
		}
	}
	return nil
}

// wrap breaks text at spaces into lines of so many cells, as far as that goes.
func wrap(text string, cells int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for _, word := range strings.Split(paragraph, " ") {
			if line != "" && runewidth.StringWidth(line)+1+runewidth.StringWidth(word) > cells {
				lines = append(lines, line)
				line = word
			} else if line == "" {
				line = word
			} else {
				line += " " + word
			}
		}
		lines = append(lines, line)
	}
	return lines
}
