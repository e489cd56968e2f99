package main

import (
	"github.com/spf13/cobra"
)

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "Shows and changes rate limits in Postgres",
		Long: `Shows and changes the rate limits of github.com/weir-go/weir in a Postgres
database.

It needs no definitions, because each balance is stored with its rule.

It connects to the database that --database names, or else DATABASE_URL, or else
libpq's own settings: PGHOST, PGDATABASE, PGUSER, ~/.pgpass and so on. The exit
status is 1 if the command failed or found something wrong, 2 if its arguments
were wrong, and otherwise 0.`,
		Example: `  weir limits                           the limits, and which keys are short of tokens
  weir show chatTokens acme             what acme has left, and when it will be full
  weir pause partnerAPI acme 90s        grant nothing to acme for 90 seconds
  weir doctor                           what is wrong, and how to fix it`,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun:  func(*cobra.Command, []string) { e.started = true },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&e.database, "database", "",
		"URL or key=value pairs of the database (default: DATABASE_URL, then PGHOST and so on)")
	flags.StringVar(&e.schema, "schema", "",
		"Postgres schema with Weir's tables (default: the one that search_path finds)")
	flags.BoolVar(&e.json, "json", false, "write JSON: times in RFC 3339, durations in seconds")
	flags.BoolVar(&e.yes, "yes", false, "change a database on another machine without being asked")
	root.AddCommand(newMigrate(e), newLimits(e), newShow(e), newReset(e), newPause(e), newResume(e),
		newPrune(e), newExplain(e),
		newLine(e), newDoctor(e))
	return root
}

// takes says what a command takes, in place of a number of arguments.
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usagef("%s takes %s: see %s --help", cmd.Name(), what, cmd.CommandPath())
		}
		return nil
	}
}
