package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func newLimits(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "limits",
		Short: "List the limits, and which keys are short of tokens",
		Long: `Lists the limits that have balances. The rule shown is that of the balance that
was written last.

Up to a thousand keys of each limit are read. SHORT is the number of keys with
less than a tenth of their capacity left, IN DEBT of those that owe tokens
because work was reserved ahead, and PAUSED of those that are paused. A number
with a ~ is an estimate.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.with(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.limits(ctx)
			})
		},
	}
}

func (s *session) limits(ctx context.Context) error {
	look, err := s.reader()
	if err != nil {
		return err
	}
	limits, err := look.Limits(ctx)
	if err != nil {
		return err
	}
	if s.e.json {
		return s.e.writeJSON(limits)
	}
	if len(limits) == 0 {
		s.e.sayf("No limit in schema %q has a balance: nothing was taken yet, or all are full and were pruned.\n",
			s.schema)
		return nil
	}
	var rows [][]cell
	problems := 0
	for _, l := range limits {
		keys := number(float64(l.Keys))
		if l.Estimated {
			keys = "~" + keys
		}
		count := func(n int, c colour) cell {
			if n == 0 {
				c = dim
			}
			return cell{text: number(float64(n)), paint: c, right: true}
		}
		rows = append(rows, []cell{{text: printable(l.Name)},
			{text: rule(l.Capacity, l.Rate, l.Period, l.Windowed)}, {text: keys,
				right: true},
			{text: fmt.Sprint(l.Shards), right: true}, count(l.Short, yellow), count(l.InDebt, red),
			count(l.Paused, cyan),
			{text: lasting(l.At.Sub(l.WrittenAt)) + " ago", right: true}})
		problems += l.Problems
	}
	s.e.table([]string{"LIMIT", "RULE", "KEYS", "SHARDS", "SHORT", "IN DEBT", "PAUSED", "WRITTEN"},
		[]int{1, 0}, rows)
	if problems > 0 {
		s.e.sayf("\n%d keys have rows that make no balance: \"weir doctor\" says why.\n", problems)
	}
	return nil
}
