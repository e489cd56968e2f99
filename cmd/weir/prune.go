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
		Long: `Deletes balances that are full, and so like those that there are not, slots that nobody has held for an hour, and the records of
settlements that nobody can make any more: 30 days after their work could run, or as the limit's SettleWithin says. It works in small transactions, waits for nobody and rests in between. Ctrl-C ends it
after a batch; what was done stays done.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error { return s.prune(ctx, cfg) })
		},
	}
	c.Flags().IntVar(&cfg.Batch, "batch", 1000, "rows that are looked at in one transaction")
	c.Flags().Float64Var(&cfg.Share, "share", 0.25, "share of the time in which it works, up to 1")
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
	if err := s.confirm("delete balances that are full, and slots and settlements that are over,"); err != nil {
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
		e.askf("\r\x1b[Klooked at %s%s, deleted %s", number(float64(p.Looked)), share, number(float64(p.Deleted+p.Slots+p.Settled)))
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
		if err := e.writeJSON(pruned{done.Looked, done.Deleted, done.Slots, done.Settled, err == nil}); err != nil {
			return err
		}
		return err
	}
	e.sayf("Looked at %s, deleted %s of them, %s and %s.\n", several(done.Looked, "balance"), number(float64(done.Deleted)),
		several(done.Slots, "slot"), several(done.Settled, "settlement"))
	return err
}
