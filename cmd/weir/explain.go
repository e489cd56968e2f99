package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/spf13/cobra"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/scheduler"
)

func newExplain(e *env) *cobra.Command {
	var riverSchema string
	c := &cobra.Command{
		Use:   "explain JOB",
		Short: "Show what a River job waits for, and until when",
		Long: `Shows for which limit a River job waits, and until when, and the state of that
limit. It knows jobs that package scheduler has inserted with their tokens.
Pauses that began later are included. JOB is the id of the job.`,
		Args: takes(1, 1, "the id of a JOB"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id < 1 {
				return usagef("the job is %q: want the id of a River job, a number above 0", args[0])
			}
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error { return s.explain(ctx, id, riverSchema) })
		},
	}
	c.Flags().StringVar(&riverSchema, "river-schema", "", "Postgres schema with River's tables (default: the one that search_path finds)")
	return c
}

// explained is the answer as JSON.
type explained struct {
	Job       int64            `json:"job"`
	Kind      string           `json:"kind"`
	State     string           `json:"state"`
	Scheduled time.Time        `json:"scheduled_at"`
	Waits     bool             `json:"waits"` // for tokens, or for the end of a pause
	Limit     string           `json:"limit,omitempty"`
	Key       string           `json:"key,omitempty"`
	Until     time.Time        `json:"until,omitzero"`
	Paused    bool             `json:"paused,omitempty"`
	Balance   *inspect.Balance `json:"balance,omitempty"` // of the limit and key
}

func (s *session) explain(ctx context.Context, id int64, riverSchema string) error {
	client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: riverSchema})
	if err != nil {
		return err
	}
	job, err := client.JobGet(ctx, id)
	if errors.Is(err, rivertype.ErrNotFound) {
		return fmt.Errorf("there is no job %d: it is done and was deleted, or River's tables are in another schema: see --river-schema",
			id)
	}
	if stateOf(err) == "42P01" {
		return errors.New("there are no tables of River in the search_path: say by --river-schema where they are")
	}
	if err != nil {
		return err
	}
	w, waits := scheduler.Explain(job)
	a := explained{Job: job.ID, Kind: job.Kind, State: string(job.State), Scheduled: job.ScheduledAt.UTC(), Waits: waits}
	if waits {
		a.Limit, a.Key, a.Until, a.Paused = w.Limit, w.Key, w.Until.UTC(), w.Paused
		look, err := s.reader()
		if err != nil {
			return err
		}
		b, err := look.Balance(ctx, w.Limit, w.Key)
		if err == nil {
			a.Balance = &b
			err = s.since(ctx, client, &a)
		}
		if err != nil && !errors.Is(err, inspect.ErrNoBalance) {
			return err
		}
	}
	if s.e.json {
		return s.e.writeJSON(a)
	}
	if !waits {
		s.e.sayf("Job %d (%s) is %s, and waits for no tokens.\n", a.Job, printable(a.Kind), a.State)
		return nil
	}
	by := "blocked"
	if a.Paused {
		by = "held up by a pause"
	}
	of := printable(a.Limit)
	if a.Key != "" {
		of += " of " + printable(a.Key)
	}
	s.e.sayf("Job %d (%s) is %s by %s until %s.\n", a.Job, printable(a.Kind), by, of, instant(a.Until))
	if a.Balance != nil {
		s.show(*a.Balance)
	}
	return nil
}

// since finds out what has become of the job's time since it was enqueued: pauses and settlements move it. It does so for the first
// thousand of those that wait for the same.
func (s *session) since(ctx context.Context, client *river.Client[pgx.Tx], a *explained) error {
	if a.Balance.Problem != "" {
		return nil
	}
	r, err := request(*a.Balance)
	if err != nil {
		return err
	}
	l, err := s.limiter()
	if err != nil {
		return err
	}
	return s.read(ctx, func(tx pgx.Tx) error {
		line, err := scheduler.New(l, scheduler.Config{}).Jobs(client).Waiting(ctx, tx, r, 1000)
		if err != nil {
			return err
		}
		for _, w := range line {
			if w.Job.ID == a.Job {
				a.Limit, a.Key, a.Until, a.Paused = w.Limit, w.Key, w.Until.UTC(), w.Paused
			}
		}
		return nil
	})
}

func stateOf(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}
