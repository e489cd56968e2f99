package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/inspect"
)

func newShow(e *env) *cobra.Command {
	var page inspect.Page
	c := &cobra.Command{
		Use:   "show LIMIT [KEY]",
		Short: "Show what keys have left, and when they will be full",
		Long: `Shows the keys of a limit in their order, or one key in full: the tokens it has
left, its rule, and when it will be full if nobody takes. The key of a limit
without keys is "".`,
		Example: `  weir show chatTokens
  weir show chatTokens --prefix org/ --most 100
  weir show chatTokens acme`,
		Args: takes(1, 2, `a LIMIT, and a KEY ("" for a limit without keys) for more of it`),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				if len(args) == 2 {
					return s.showKey(ctx, args[0], args[1])
				}
				return s.showKeys(ctx, args[0], page)
			})
		},
	}
	c.Flags().StringVar(&page.Prefix, "prefix", "", "only keys that begin with this")
	c.Flags().StringVar(&page.From, "from", "", "begin with this key")
	c.Flags().IntVar(&page.Most, "most", 20, "number of keys, up to 1000")
	return c
}

func (s *session) showKeys(ctx context.Context, name string, page inspect.Page) error {
	if page.Most < 1 || page.Most > 1000 {
		return usagef("--most is %d: want a number from 1 to 1000", page.Most)
	}
	look, err := s.reader()
	if err != nil {
		return err
	}
	balances, next, err := look.Keys(ctx, name, page)
	if err != nil {
		return err
	}
	if len(balances) == 0 && page.Prefix == "" && page.From == "" {
		return s.noLimit(ctx, look, name)
	}
	if s.e.json {
		if balances == nil {
			balances = []inspect.Balance{}
		}
		return s.e.writeJSON(struct {
			Keys []inspect.Balance `json:"keys"`
			// the key from which the next page goes on
			Next string `json:"next,omitempty"`
		}{balances, next})
	}
	const cells = 20
	bar := cells
	if s.e.plain() {
		bar += len("[]")
	}
	var rows [][]cell
	for _, b := range balances {
		if b.Problem != "" {
			rows = append(rows, []cell{{text: printable(b.Key)}, {}, {text: "?", right: true},
				{right: true}, {right: true},
				{text: b.Problem, paint: red}})
			continue
		}
		rows = append(rows, []cell{{text: printable(b.Key)},
			{text: s.e.bar(b.Value, b.Capacity, cells), cells: bar},
			{text: number(b.Value), paint: shade(b.Value, b.Capacity), right: true},
			{text: number(b.Capacity), right: true},
			{text: fullIn(b), right: true}, {text: state(b), paint: shadeOf(b)}})
	}
	if len(rows) > 0 {
		s.e.table([]string{"KEY", "", "LEFT", "OF", "FULL IN", ""}, []int{0}, rows)
	} else {
		s.e.sayf("No key of limit %q is like that.\n", name)
	}
	if next != "" {
		s.e.sayf("\nThere are more: --from %s\n", quoteArg(next))
	}
	return nil
}

// quoteArg is a key as a shell takes it. What cannot be printed is written as bash, zsh and ksh
// read it; in other shells it is another key, and never a command.
func quoteArg(s string) string {
	if printable(s) != s && s != "" {
		var b strings.Builder
		for i := range len(s) {
			if c := s[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
				fmt.Fprintf(&b, `\x%02x`, c)
			} else {
				b.WriteByte(c)
			}
		}
		return "$'" + b.String() + "'"
	}
	if strings.Trim(s,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@") == "" &&
		!strings.HasPrefix(s, "-") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func fullIn(b inspect.Balance) string {
	if b.FullAt.IsZero() {
		return "full"
	}
	return lasting(b.FullAt.Sub(b.At))
}

// state says what is special about a balance.
func state(b inspect.Balance) string {
	var all []string
	if !b.PausedUntil.IsZero() {
		all = append(all, "paused for "+lasting(b.PausedUntil.Sub(b.At)))
	}
	if b.Owed > 0 { // by one of its shards, if not by all
		all = append(all, "owes "+strings.TrimPrefix(number(-b.Owed), "-"))
	}
	return strings.Join(all, ", ")
}

func shadeOf(b inspect.Balance) colour {
	if b.Value < 0 {
		return red
	}
	return cyan
}

func (s *session) showKey(ctx context.Context, name, key string) error {
	look, err := s.reader()
	if err != nil {
		return err
	}
	b, err := s.balance(ctx, look, name, key)
	if errors.Is(err, inspect.ErrNoBalance) {
		return fmt.Errorf(
			"%w. If a call for this key was denied, another limit of that call denied it", err,
		)
	}
	if err != nil {
		return err
	}
	if s.e.json {
		return s.e.writeJSON(b)
	}
	s.show(b)
	return nil
}

func (s *session) show(b inspect.Balance) {
	e := s.e
	title := printable(b.Limit)
	if b.Key != "" {
		title += " of " + printable(b.Key)
	}
	e.sayf("%s\n", e.paint(bold, title))
	line := func(name, text string) { e.sayf("  %-9s %s\n", name, text) }
	moment := func(t time.Time) string {
		return "in " + lasting(t.Sub(b.At)) + ", at " + instant(t)
	}
	if b.Problem != "" {
		line("problem", e.paint(red, b.Problem))
		line("written", lasting(b.At.Sub(b.WrittenAt))+" ago")
		return
	}
	percent := ""
	if b.Capacity > 0 && b.Value >= 0 {
		percent = fmt.Sprintf(" (%s %%)", number(float64(int(b.Value/b.Capacity*100))))
	}
	e.sayf("  %s\n", e.bar(b.Value, b.Capacity, 40))
	line("left", e.paint(shade(b.Value, b.Capacity),
		number(b.Value))+" of "+number(b.Capacity)+percent)
	kind := "a token bucket: "
	if b.Windowed {
		kind = "a fixed window: "
	}
	line("rule", kind+rule(b.Capacity, b.Rate, b.Period, b.Windowed))
	if at := tokenAt(b); !at.IsZero() {
		line("next", "a token "+moment(at))
	}
	if b.FullAt.IsZero() {
		line("full", "now")
	} else {
		line("full", moment(b.FullAt))
	}
	if b.Windowed {
		line("window", "ends "+moment(b.WindowEnds))
	}
	if !b.PausedUntil.IsZero() {
		line("paused", e.paint(cyan, "ends "+moment(b.PausedUntil)))
	}
	if b.Shards > 1 {
		line("shards", fmt.Sprint(b.Shards))
	}
	line("written", lasting(b.At.Sub(b.WrittenAt))+" ago, at "+instant(b.WrittenAt))
}

// tokenAt is when the balance will be a token, if nobody takes: zero if it is that already, or will
// not be within a lifetime. Shards differ from each other, so for those it is not told.
func tokenAt(b inspect.Balance) time.Time {
	if b.Value >= 1 || b.Capacity < 1 || b.Rate <= 0 || b.Shards > 1 || !b.PausedUntil.IsZero() {
		return time.Time{}
	}
	periods, from := (1-b.Value)/b.Rate, b.At
	if b.Windowed {
		periods, from = math.Ceil(periods)-1, b.WindowEnds
	}
	wait := math.Ceil(periods * float64(b.Period))
	if wait >= math.MaxInt64 { // 292 years
		return time.Time{}
	}
	return from.Add(time.Duration(wait))
}

// balance is Reader.Balance, whose error says what there is if there is no such limit.
func (s *session) balance(
	ctx context.Context, look *inspect.Reader, name, key string,
) (inspect.Balance, error) {
	b, err := look.Balance(ctx, name, key)
	if err == nil {
		return b, nil
	}
	if found, _, more := look.Keys(ctx, name, inspect.Page{Most: 1}); more == nil &&
		len(found) == 0 {
		return b, s.noLimit(ctx, look, name)
	}
	return b, err
}

// noLimit says which limits there are.
func (s *session) noLimit(ctx context.Context, look *inspect.Reader, name string) error {
	names, err := look.Names(ctx)
	if err != nil {
		return err
	}
	for i := range names {
		names[i] = printable(names[i])
	}
	there := "there are none"
	if n := len(names); n > 0 {
		there = "there are " + strings.Join(names[:min(n, 10)], ", ")
		if n > 10 {
			there += fmt.Sprintf(" and %d more", n-10)
		}
	}
	return fmt.Errorf("no limit %q has a balance in schema %q: %s", name, s.schema, there)
}
