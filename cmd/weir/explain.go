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
Pauses that began later are included. For a job in a fair line it shows whose
jobs go before it, as far as the next few hundred jobs tell. For a job that
waits for a slot it shows the job's place. JOB is the id of the job.`,
		Args: takes(1, 1, "the id of a JOB"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id < 1 {
				return usagef("the job is %q: want the id of a River job, a number above 0",
					args[0])
			}
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.explain(ctx, id, riverSchema)
			})
		},
	}
	riverSchemaFlag(c, &riverSchema)
	return c
}

// explained is the answer as JSON.
type explained struct {
	Job       int64     `json:"job"`
	Kind      string    `json:"kind"`
	State     string    `json:"state"`
	Scheduled time.Time `json:"scheduled_at"`
	// for tokens, for its turn, for a slot, or for the end of a pause
	Waits   bool             `json:"waits"`
	Limit   string           `json:"limit,omitempty"`
	Key     string           `json:"key,omitempty"`
	Until   time.Time        `json:"until,omitzero"`
	Paused  bool             `json:"paused,omitempty"`
	Balance *inspect.Balance `json:"balance,omitempty"` // of the limit and key

	// Of a job in a fair line:
	Tenant   string       `json:"tenant,omitempty"`
	Turn     int          `json:"turn,omitempty"` // 1 goes next; 0: not known
	Charged  float64      `json:"charged,omitempty"`
	Before   []before     `json:"before,omitempty"` // that go first, by tenant
	PassedBy *limitAndKey `json:"passed_over_by,omitempty"`

	// Of a job that waits for a slot, with its turn:
	Slot        bool `json:"slot,omitempty"`
	QueuePaused bool `json:"queue_paused,omitempty"`
}

func (s *session) explain(ctx context.Context, id int64, riverSchema string) error {
	client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: riverSchema})
	if err != nil {
		return err
	}
	var job *rivertype.JobRow
	err = s.read(ctx, func(tx pgx.Tx) (err error) {
		job, err = client.JobGetTx(ctx, tx, id)
		return err
	})
	if errors.Is(err, rivertype.ErrNotFound) {
		return fmt.Errorf("there is no job %d: it is done and was deleted, or River's tables are in another schema: see --river-schema",
			id)
	}
	if err != nil {
		return noRiver(err)
	}
	w, waits, err := s.waits(ctx, client, job)
	if err != nil {
		return err
	}
	a := explained{Job: job.ID, Kind: job.Kind, State: string(job.State),
		Scheduled: job.ScheduledAt.UTC(), Waits: waits}
	if w.Slot {
		a.Limit, a.Key, a.Slot, a.Turn, a.QueuePaused = w.Limit, w.Key, true, w.Place, w.PassedOver
	} else if waits {
		a.Limit, a.Key, a.Until, a.Paused = w.Limit, w.Key, w.Until.UTC(), w.Paused
		look, err := s.reader()
		if err != nil {
			return err
		}
		b, err := look.Balance(ctx, w.Limit, w.Key)
		if err == nil {
			a.Balance = &b
		}
		if err == nil && w.Tenant == "" {
			err = s.since(ctx, client, &a)
		}
		if err != nil && !errors.Is(err, inspect.ErrNoBalance) {
			return err
		}
	}
	var l *inLine
	if w.Tenant != "" {
		a.Tenant = w.Tenant
		if l, err = s.lineOf(ctx, client, w.Limit, w.Key); err != nil {
			return err
		}
		a.place(l)
	}
	if s.e.json {
		return s.e.writeJSON(a)
	}
	if !waits {
		s.e.sayf("Job %d (%s) is %s, and waits for no tokens and no slot.\n", a.Job,
			printable(a.Kind), a.State)
		return nil
	}
	if a.Slot {
		s.e.sayf("Job %d (%s) waits for a slot of %s.\n", a.Job, printable(a.Kind),
			nameOf(a.Limit, a.Key))
		s.explainSlot(&a)
		return nil
	}
	by, of := "blocked", nameOf(a.Limit, a.Key)
	if a.Paused {
		by = "held up by a pause"
	}
	if l != nil {
		s.e.sayf("Job %d (%s) waits for its turn at %s, for tenant %s.\n", a.Job, printable(a.Kind),
			of, printable(a.Tenant))
		s.explainTurn(&a, l)
	} else {
		s.e.sayf("Job %d (%s) is %s by %s until %s.\n", a.Job, printable(a.Kind), by, of,
			instant(a.Until))
	}
	if a.Balance != nil {
		s.show(*a.Balance)
	}
	return nil
}

// waits tells what a job waits for.
func (s *session) waits(
	ctx context.Context, client *river.Client[pgx.Tx], job *rivertype.JobRow,
) (w scheduler.Waiting, waits bool, err error) {
	l, err := s.limiter()
	if err != nil {
		return w, false, err
	}
	err = s.read(ctx, func(tx pgx.Tx) (err error) {
		w, waits, err = scheduler.New(l, scheduler.Config{}).Jobs(client).Explain(ctx, tx, job)
		return err
	})
	return w, waits, err
}

// since finds out what has become of the job's time since it was enqueued: pauses and settlements
// move it. It does so for the first thousand of those that wait for the same.
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
