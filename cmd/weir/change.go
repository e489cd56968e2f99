package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/ratelimit"
)

func newReset(e *env) *cobra.Command {
	var everything string
	c := &cobra.Command{
		Use:   "reset LIMIT KEY | reset --key KEY",
		Short: "Make one balance full, or all balances of a key",
		Long: `Makes the balance of a key full, or with --key the balances of that key in all
limits. Jobs that were reserved still run, and no longer owe their tokens. It
does not end a pause: "weir resume" does. The key of a limit without keys is "".`,
		Example: `  weir reset chatTokens acme
  weir reset --key acme`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("key") {
				return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
					return s.resetKey(ctx, everything)
				})
			}
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.change(ctx, "reset", args[0], args[1],
					(*ratelimit.Autocommit).ResetRateLimit)
			})
		},
	}
	c.Flags().StringVar(&everything, "key", "", "reset all balances of this key")
	c.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case cmd.Flags().Changed("key") && len(args) > 0:
			return usagef("reset takes a LIMIT and a KEY, or --key, and not both")
		case !cmd.Flags().Changed("key") && len(args) != 2:
			return usagef(`reset takes a LIMIT and a KEY ("" for a limit without keys), or --key KEY for all limits of a key`)
		}
		return nil
	}
	return c
}

func newPause(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "pause LIMIT KEY DURATION",
		Short: "Grant nothing to a key for a while",
		Long: `Pauses a key of a limit for a duration from now on, such as 90s, 10m or 1h30m.
Until the pause is over, nothing is granted and no tokens flow in. Work that was
reserved starts later by the length of the pause. A pause that already lasts
longer is not changed. The key of a limit without keys is "".`,
		Example: `  weir pause partnerAPI acme 90s`,
		Args:    takes(3, 3, `a LIMIT, a KEY ("" for a limit without keys) and a DURATION`),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[2])
			if err != nil {
				return usagef("the duration is %q: want one such as 90s, 10m or 1h30m", args[2])
			}
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.change(ctx, "pause", args[0], args[1],
					func(a *ratelimit.Autocommit, ctx context.Context,
						requests ...ratelimit.Request) error {
						return a.Pause(ctx, d, requests...)
					})
			})
		},
	}
}

func newResume(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "resume LIMIT KEY",
		Short: "End a pause",
		Long: `Ends the pause of a key now, if there is one. Work that waits starts earlier by
the time that was left. River jobs that the pause has put off move up within a
second or two, if a River client that package scheduler has configured is
running. The key of a limit without keys is "".`,
		Args: takes(2, 2, `a LIMIT and a KEY ("" for a limit without keys)`),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.change(ctx, "resume", args[0], args[1], (*ratelimit.Autocommit).Resume)
			})
		},
	}
}

// change does something to one balance, by the rule that stands in its row, and shows it.
func (s *session) change(ctx context.Context, verb, name, key string,
	do func(*ratelimit.Autocommit, context.Context,
		...ratelimit.Request) error) error {
	look, err := s.reader()
	if err != nil {
		return err
	}
	b, err := s.balance(ctx, look, name, key)
	if errors.Is(err, inspect.ErrNoBalance) && verb == "pause" {
		b, err = s.unused(ctx, look, name, key)
	}
	if err != nil {
		return err
	}
	r, err := request(b)
	if err != nil {
		return err
	}
	l, err := s.limiter()
	if err != nil {
		return err
	}
	if err := s.confirm(ctx, fmt.Sprintf("%s limit %q, key %q", verb, name, key)); err != nil {
		return err
	}
	if err := do(l.Autocommit(s.pool), ctx, r); err != nil {
		return invalid(err)
	}
	if b, err = look.Balance(ctx, name, key); err != nil {
		return err
	}
	if s.e.json {
		return s.e.writeJSON(b)
	}
	s.show(b)
	return nil
}

// unused is the balance of a key that has none, which may be closed before it is used: by the rule
// of another.
func (s *session) unused(
	ctx context.Context, look *inspect.Reader, name, key string,
) (inspect.Balance, error) {
	if _, err := look.Limit(ctx, name); err != nil {
		return inspect.Balance{}, err
	}
	others, _, err := look.Keys(ctx, name, inspect.Page{Most: 1})
	if err != nil || len(others) == 0 {
		return inspect.Balance{}, cmp.Or(err, inspect.ErrNoBalance)
	}
	b := others[0]
	b.Key, b.Shards = key, 1
	return b, nil
}

// request is a call for a balance as its row has it.
func request(b inspect.Balance) (ratelimit.Request, error) {
	if b.Problem != "" {
		return ratelimit.Request{},
			fmt.Errorf("the rows of limit %q, key %q, make no balance: %s. A program that defines the limit "+
				"can reset it, by ResetRateLimit",
				b.Limit, b.Key, b.Problem)
	}
	const shadowed = " (shadow)"
	options := []ratelimit.Option{ratelimit.Shards(b.Shards)}
	name, shadow := strings.CutSuffix(b.Limit, shadowed)
	if shadow {
		options = append(options, ratelimit.Shadow())
	}
	limit, err := ratelimit.Define(name, b.Rule(), options...)
	if err != nil {
		return ratelimit.Request{}, err
	}
	if b.Key == "" {
		return limit.Global(), nil
	}
	return limit.For(b.Key), nil
}

// invalid is a usage error if a value on the command line was wrong.
func invalid(err error) error {
	var bad *ratelimit.InvalidError
	if errors.As(err, &bad) {
		return usagef("%s is %v: want %s", bad.Field, bad.Value, bad.Want)
	}
	return err
}

func (s *session) resetKey(ctx context.Context, key string) error {
	look, err := s.reader()
	if err != nil {
		return err
	}
	l, err := s.limiter()
	if err != nil {
		return err
	}
	names, err := look.Names(ctx)
	if err != nil {
		return err
	}
	all := []inspect.Balance{}
	find := func() error {
		all = all[:0]
		for _, name := range names {
			b, err := look.Balance(ctx, name, key)
			if err == nil {
				all = append(all, b)
			} else if !errors.Is(err, inspect.ErrNoBalance) {
				return err
			}
		}
		return nil
	}
	if err := find(); err != nil {
		return err
	}
	if len(all) == 0 && len(names) < 1000 {
		return fmt.Errorf("no limit has a balance of key %q: nothing was taken, or all are full and were pruned",
			key)
	}
	what := fmt.Sprintf("reset all %d balances of key %q", len(all), key)
	if err := s.confirm(ctx, what); err != nil {
		return err
	}
	if err := l.Autocommit(s.pool).ResetKey(ctx, key); err != nil {
		return invalid(err)
	}
	if err := find(); err != nil {
		return err
	}
	if s.e.json {
		return s.e.writeJSON(all)
	}
	for _, b := range all {
		s.show(b)
	}
	return nil
}
