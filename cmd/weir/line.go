package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/spf13/cobra"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/scheduler"
)

func newLine(e *env) *cobra.Command {
	var riverSchema string
	most := 20
	c := &cobra.Command{
		Use:   "line LIMIT [KEY]",
		Short: "Show which tenants wait in a fair line, and who goes next",
		Long: `Shows the tenants whose jobs wait in a fair line, in the order of their next
turns, and why they have this order. TURN is the place of the tenant's next job
among all jobs in line. CHARGED is how much the tenant has had beyond what all
who wait have had, in tokens for a weight of 1: the tenant with the least goes
next. Without a KEY it is the line of the limit without keys. However many jobs
wait, it reads a few hundred.

If jobs wait for slots of the LIMIT and KEY, it shows these, the next one first.`,
		Example: `  weir line sharedAPI
  weir line sharedAPI eu-west --json`,
		Args: takes(1, 2, "a LIMIT, and a KEY if the limit has keys"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 1 || most > mostInLine {
				return usagef("--most is %d: want a number from 1 to %d", most, mostInLine)
			}
			key := ""
			if len(args) == 2 {
				key = args[1]
			}
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.line(ctx, args[0], key, riverSchema, most)
			})
		},
	}
	c.Flags().IntVar(&most, "most", most,
		"number of tenants, or of jobs that wait for slots, up to 500")
	riverSchemaFlag(c, &riverSchema)
	return c
}

const mostInLine = 500 // jobs that InLine lists

// inLine is a fair line as JSON.
type inLine struct {
	Limit   string           `json:"limit"`
	Key     string           `json:"key"`
	Tenants []waitingTenant  `json:"tenants"`
	Jobs    []jobInLine      `json:"jobs"`
	More    bool             `json:"more"` // jobs wait than these
	Balance *inspect.Balance `json:"balance,omitempty"`
	Slots   []jobForSlot     `json:"for_slots,omitempty"` // jobs that wait for slots
}

// jobForSlot is a job that waits for a slot.
type jobForSlot struct {
	Turn        int    `json:"turn,omitempty"` // 1 goes next; 0: its queue is paused
	Job         int64  `json:"job"`
	Kind        string `json:"kind"`
	Priority    int    `json:"priority"`
	QueuePaused bool   `json:"queue_paused,omitempty"`
}

// waitingTenant is a tenant with jobs in line.
type waitingTenant struct {
	Tenant  string    `json:"tenant"`
	Jobs    int       `json:"jobs"` // among those that are listed
	Next    jobInLine `json:"next"`
	Charged float64   `json:"charged"`
	// what its next job has too few tokens of
	PassedBy *limitAndKey `json:"passed_over_by,omitempty"`
}

type jobInLine struct {
	// 1 goes next; 0: jobs that were not read may go before
	Turn     int     `json:"turn,omitempty"`
	Job      int64   `json:"job"`
	Kind     string  `json:"kind"`
	Priority int     `json:"priority"`
	Tenant   string  `json:"tenant"`
	Charged  float64 `json:"charged"`
}

type limitAndKey struct {
	Limit string `json:"limit"`
	Key   string `json:"key"`
}

func (s *session) line(ctx context.Context, limit, key, riverSchema string, most int) error {
	client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: riverSchema})
	if err != nil {
		return err
	}
	l, err := s.lineOf(ctx, client, limit, key)
	if err == nil {
		l.Slots, err = s.slotsOf(ctx, client, limit, key)
	}
	if err != nil {
		return noRiver(err)
	}
	look, err := s.reader()
	if err != nil {
		return err
	}
	b, err := look.Balance(ctx, limit, key)
	if err == nil {
		l.Balance = &b
	} else if !errors.Is(err, inspect.ErrNoBalance) {
		return err
	}
	if s.e.json {
		return s.e.writeJSON(l)
	}
	switch {
	case len(l.Slots) > 0:
		s.showSlots(l, most)
		if len(l.Jobs) > 0 {
			s.e.sayf("\n")
		}
	case len(l.Jobs) == 0:
		hint := ""
		if key == "" {
			hint = " If the limit has keys, name one."
		}
		s.e.sayf("No job waits for its turn at %s, or for a slot of it.%s\n", l.name(), hint)
	}
	if len(l.Jobs) > 0 {
		s.showLine(l, most)
	}
	if l.Balance != nil {
		s.e.sayf("\n")
		s.show(*l.Balance)
	}
	return nil
}

func (l *inLine) name() string { return nameOf(l.Limit, l.Key) }

func nameOf(limit, key string) string {
	if key == "" {
		return printable(limit)
	}
	return printable(limit) + " of " + printable(key)
}

// lineOf reads a line.
func (s *session) lineOf(
	ctx context.Context, client *river.Client[pgx.Tx], limit, key string,
) (*inLine, error) {
	if err := s.define(ctx); err != nil {
		return nil, err
	}
	limiter, err := s.limiter()
	if err != nil {
		return nil, err
	}
	l := &inLine{Limit: limit, Key: key, Tenants: []waitingTenant{}, Jobs: []jobInLine{}}
	at := map[string]int{}
	err = s.read(ctx, func(tx pgx.Tx) error {
		next, more, err := scheduler.New(limiter, scheduler.Config{}).Jobs(client).InLine(ctx, tx,
			limit, key, mostInLine)
		l.More = more
		for _, w := range next {
			j := jobInLine{w.Place, w.Job.ID, w.Job.Kind, w.Job.Priority, w.Tenant, w.Charged}
			l.Jobs = append(l.Jobs, j)
			i, known := at[w.Tenant]
			if !known {
				i = len(l.Tenants)
				at[w.Tenant] = i
				t := waitingTenant{Tenant: w.Tenant, Next: j, Charged: w.Charged}
				if w.PassedOver {
					t.PassedBy = &limitAndKey{w.Limit, w.Key}
				}
				l.Tenants = append(l.Tenants, t)
			}
			l.Tenants[i].Jobs++
		}
		return err
	})
	return l, err
}

// slotsOf reads the jobs that wait for slots.
func (s *session) slotsOf(
	ctx context.Context, client *river.Client[pgx.Tx], limit, key string,
) (list []jobForSlot, err error) {
	limiter, err := s.limiter()
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, func(tx pgx.Tx) error {
		waiting, err := scheduler.New(limiter, scheduler.Config{}).Jobs(client).WaitingForSlot(ctx,
			tx, limit, key, mostInLine)
		for _, w := range waiting {
			list = append(
				list, jobForSlot{w.Place, w.Job.ID, w.Job.Kind, w.Job.Priority, w.PassedOver},
			)
		}
		return err
	})
	return list, err
}

// define defines the limits that have rows, each by the rule of one of them, so that it can be told
// which of them have too few tokens for a job.
func (s *session) define(ctx context.Context) error {
	look, err := s.reader()
	if err != nil {
		return err
	}
	names, err := look.Names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		balances, _, err := look.Keys(ctx, name, inspect.Page{Most: 1})
		if err != nil {
			return err
		}
		if len(balances) > 0 {
			_, _ = request(balances[0]) // rows that make no balance define nothing
		}
	}
	return nil
}

func (s *session) showLine(l *inLine, most int) {
	var rows [][]cell
	for _, t := range l.Tenants[:min(most, len(l.Tenants))] {
		note := cell{}
		if t.PassedBy != nil {
			note = cell{text: "passed over: " + nameOf(t.PassedBy.Limit, t.PassedBy.Key) +
				" has too few tokens", paint: yellow}
		}
		rows = append(rows, []cell{{text: turnOf(t.Next.Turn), right: true},
			{text: printable(t.Tenant)},
			{text: number(float64(t.Jobs)), right: true}, {text: number(t.Charged), right: true},
			{text: fmt.Sprint(t.Next.Job), right: true}, {text: printable(t.Next.Kind)},
			{text: fmt.Sprint(t.Next.Priority), right: true}, note})
	}
	s.e.table([]string{"TURN", "TENANT", "JOBS", "CHARGED", "NEXT JOB", "KIND", "PRIORITY", ""},
		[]int{7, 1, 5}, rows)
	var notes []string
	if n := len(l.Tenants) - most; n > 0 {
		notes = append(
			notes, fmt.Sprintf("Tenants that are not shown: %s. See --most.", number(float64(n))),
		)
	}
	if l.More {
		notes = append(notes, fmt.Sprintf("JOBS counts the %s that were read. There are more.",
			several(int64(len(l.Jobs)), "job")))
	}
	if l.assumes() {
		notes = append(notes, assumed)
	}
	for i, note := range notes {
		if i == 0 {
			s.e.sayf("\n")
		}
		s.e.sayf("%s\n", note)
	}
}

func (s *session) showSlots(l *inLine, most int) {
	var rows [][]cell
	for _, j := range l.Slots[:min(most, len(l.Slots))] {
		note, turn := cell{}, "none"
		if j.QueuePaused {
			note = cell{text: "its queue is paused", paint: yellow}
		} else {
			turn = number(float64(j.Turn))
		}
		rows = append(rows, []cell{{text: turn, right: true},
			{text: fmt.Sprint(j.Job), right: true}, {text: printable(j.Kind)},
			{text: fmt.Sprint(j.Priority), right: true}, note})
	}
	s.e.sayf("Jobs that wait for a slot of %s:\n", l.name())
	s.e.table([]string{"TURN", "JOB", "KIND", "PRIORITY", ""}, []int{4, 2}, rows)
	if n := len(l.Slots) - most; n > 0 {
		s.e.sayf("At least %s are not shown. See --most.\n", several(int64(n), "job"))
	}
}

func turnOf(nr int) string {
	if nr == 0 {
		return "later"
	}
	return number(float64(nr))
}

const assumed = "Jobs have different priorities. The order assumes a Patience of an hour and no OverAll, as the database does not have those."

// assumes says that the order of the jobs depends on what only programs know.
func (l *inLine) assumes() bool {
	for _, j := range l.Jobs {
		if j.Priority != l.Jobs[0].Priority {
			return true
		}
	}
	return false
}

// noRiver says what to do if River's tables were not found.
func noRiver(err error) error {
	if stateOf(err) == "42P01" {
		return errors.New(
			"there are no tables of River in the search_path: say by --river-schema where they are",
		)
	}
	return err
}

func riverSchemaFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "river-schema", "",
		"Postgres schema with River's tables (default: the one that search_path finds)")
}
