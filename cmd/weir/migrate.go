package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/schema"
)

func newMigrate(e *env) *cobra.Command {
	var d distribution
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the tables, or upgrade them",
		Long: `Creates Weir's tables, or upgrades them to the newest version that this command
knows. It does so in one transaction, so a failure leaves nothing behind.
Several processes may do this at once.

The tables go into the schema that --schema names, which is created if it does
not exist, or into the first schema of search_path.

On the coordinator of a Citus cluster, --distributed distributes the tables, with
the rows in them, over the nodes by key. With --distributed-with, the rows of a
key are stored with those of the same key in a table of yours, which must be
distributed by a column of type text. Programs then need ratelimit.Config.Citus.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("distributed-with") && d.with == "" {
				return usagef("--distributed-with is empty: want the name of a table")
			}
			return e.open(cmd.Context(), func(ctx context.Context, s *session) error {
				return s.migrate(ctx, d)
			})
		},
	}
	cmd.Flags().BoolVar(&d.on, "distributed", false,
		"distribute the tables over the nodes of a Citus cluster")
	cmd.Flags().StringVar(&d.with, "distributed-with", "",
		"like --distributed, and keep the rows of a key together with those of this `table`")
	return cmd
}

// distribution is how the tables are to stand on a Citus cluster, if they are.
type distribution struct {
	on   bool
	with string
}

func (d distribution) options() []schema.Option {
	switch {
	case d.with != "":
		return []schema.Option{schema.DistributedWith(d.with)}
	case d.on:
		return []schema.Option{schema.Distributed()}
	}
	return nil
}

func (s *session) migrate(ctx context.Context, d distribution) error {
	var in []schema.Option
	where := s.e.schema
	if where == "" {
		where = s.schema // where they are already
	}
	if where == "" {
		if err := s.pool.QueryRow(ctx, `SELECT coalesce(current_schema()::text, '')`).
			Scan(&where); err != nil {
			return err
		}
	}
	if where != "" {
		in = append(in, schema.In(where))
	}
	from, err := schema.Version(ctx, s.pool, in...)
	if err != nil {
		return err
	}
	distribute := d.options()
	if from < schema.Newest || from == schema.Newest && len(distribute) > 0 {
		what := fmt.Sprintf("migrate schema %q from version %d to %d", where, from, schema.Newest)
		if len(distribute) > 0 {
			what += " and distribute its tables"
		}
		if err := s.confirm(ctx, what); err != nil {
			return err
		}
	}
	if err := schema.Migrate(ctx, s.pool, append(in, distribute...)...); err != nil {
		return err
	}
	to, err := schema.Version(ctx, s.pool, in...)
	if err != nil {
		return err
	}
	if s.e.json {
		return s.e.writeJSON(struct {
			Schema string `json:"schema"`
			From   int    `json:"from"`
			To     int    `json:"to"`
		}{where, from, to})
	}
	if from > schema.Newest && len(distribute) > 0 { // Migrate has left it alone
		s.e.sayf("Schema %q is at version %d, which a later weir has made. "+
			"This one has changed nothing, and distributed nothing.\n", where, to)
		return nil
	}
	if len(distribute) > 0 {
		s.e.sayf("Schema %q is at version %d, and its tables are distributed.\n", where, to)
		return nil
	}
	if from == to {
		s.e.sayf("Schema %q is at version %d: nothing to do.\n", where, to)
		return nil
	}
	s.e.sayf("Schema %q is at version %d now; it was at %d.\n", where, to, from)
	return nil
}
