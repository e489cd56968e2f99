package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/ratelimit"
)

func newPrune(e *env) *cobra.Command {
	var cfg ratelimit.PruneConfig
	c := &cobra.Command{
		Use:   "prune",
		Short: "Delete full balances, and expired slots and settlements",
		Long: `Deletes rows that are no longer needed: balances that are full, free slots that
were last taken more than an hour ago, and records of settlements that can no
longer be repeated. Those are 30 days old, or as old as the limit's SettleWithin
says, counted from when their work could run.

It works in small transactions, skips locked rows, and pauses between batches.
Ctrl-C stops it after a batch; what it has deleted stays deleted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.prune(ctx, cfg)
			})
		},
	}
	c.Flags().IntVar(&cfg.Batch, "batch", 1000, "rows to read in one transaction")
	c.Flags().Float64Var(&cfg.Share, "share", 0.25,
		"share of the time in which it works, up to 1; it pauses for the rest")
	return c
}

// pruned is the answer as JSON.
type pruned struct {
	Looked   int64 `json:"looked"`
	Deleted  int64 `json:"deleted"`
	Slots    int64 `json:"slots"`    // slots that were deleted
	Settled  int64 `json:"settled"`  // settlements that were deleted
	Complete bool  `json:"complete"` // it was not ended before
}

func (s *session) prune(ctx context.Context, cfg ratelimit.PruneConfig) error {
	l, err := s.limiter()
	if err != nil {
		return err
	}
	if err := s.confirm(ctx,
		"delete balances that are full, and slots and settlements that are over,",
	); err != nil {
		return err
	}
	e := s.e
	var about int64
	if e.errTerm {
		// The planner's number, which is good enough for a share.
		if err := s.pool.QueryRow(ctx, `SELECT greatest(reltuples, 0)::bigint FROM pg_catalog.pg_class WHERE oid = $1::regclass::oid`,
			l.Table()).Scan(&about); err != nil {
			return err
		}
	}
	var told time.Time
	var line bool
	cfg.Progress = func(p ratelimit.Pruned) error {
		if !e.errTerm || e.now().Sub(told) < 200*time.Millisecond {
			return nil
		}
		told, line = e.now(), true
		share := ""
		if about > 0 {
			share = fmt.Sprintf(" (%d %%)", min(99, p.Looked*100/about))
		}
		e.askf("\r\x1b[Klooked at %s%s, deleted %s", number(float64(p.Looked)), share,
			number(float64(p.Deleted+p.Slots+p.Settled)))
		return nil
	}
	done, err := l.Prune(ctx, s.pool, cfg)
	if line {
		e.askf("\r\x1b[K")
	}
	if err = invalid(err); err != nil && done == (ratelimit.Pruned{}) {
		return err
	}
	if e.json {
		if err := e.writeJSON(pruned{done.Looked, done.Deleted, done.Slots, done.Settled,
			err == nil}); err != nil {
			return err
		}
		return err
	}
	e.sayf("Looked at %s, deleted %s of them, %s and %s.\n", several(done.Looked, "balance"),
		number(float64(done.Deleted)),
		several(done.Slots, "slot"), several(done.Settled, "settlement"))
	return err
}
