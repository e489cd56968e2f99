package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/schema"
)

func newMigrate(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables, or bring them up to date",
		Long: `Makes Weir's tables, or brings them up to the newest version that this command knows. All in one transaction: what fails
leaves nothing behind. Any number of them may run at once.

The tables come into the schema of --schema, which is made if it does not exist, or into the first one of search_path.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.open(cmd.Context(), func(ctx context.Context, s *session) error { return s.migrate(ctx) })
		},
	}
}

func (s *session) migrate(ctx context.Context) error {
	var in []schema.Option
	where := s.e.schema
	if where == "" {
		where = s.schema // where they are already
	}
	if where == "" {
		if err := s.pool.QueryRow(ctx, `SELECT coalesce(current_schema()::text, '')`).Scan(&where); err != nil {
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
	if from < schema.Newest {
		if err := s.confirm(fmt.Sprintf("migrate schema %q from version %d to %d", where, from, schema.Newest)); err != nil {
			return err
		}
	}
	if err := schema.Migrate(ctx, s.pool, in...); err != nil {
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
	if from == to {
		s.e.sayf("Schema %q is at version %d: nothing to do.\n", where, to)
		return nil
	}
	s.e.sayf("Schema %q is at version %d now; it was at %d.\n", where, to, from)
	return nil
}
