package pgtest

import (
	"context"
	"crypto/rand"
	"log"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/schema"
)

// Example is Pool for a testable example, which has no testing.TB: what goes wrong ends the
// process. Each of the statements is run in the schema, to make the tables of the example. The pool
// and its schema are gone after done.
func Example(statements ...string) (pool *pgxpool.Pool, done func()) {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	s, err := server()
	must(err)
	cfg, err := pgxpool.ParseConfig(s.URL())
	must(err)
	name := "weir_example_" + strings.ToLower(rand.Text()[:10])
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	pool, err = pgxpool.NewWithConfig(ctx, cfg)
	must(err)
	must(migrate(ctx, pool, schema.In(name)))
	for _, sql := range statements {
		_, err := pool.Exec(ctx, sql)
		must(err)
	}
	return pool, func() {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := Alone(ctx, pool, func() error {
			_, err := pool.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{name}.Sanitize()+" CASCADE")
			return err
		})
		pool.Close()
		must(err)
	}
}
