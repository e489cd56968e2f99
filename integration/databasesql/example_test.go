package databasesql

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

var Mails = ratelimit.MustDefine("mails", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})

// A row, the tokens of a job and the job itself are written in one transaction of database/sql.
func Example() {
	ctx := context.Background()
	pool, done := pgtest.Example(`CREATE TABLE account (name text)`)
	defer done()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		log.Fatal(err)
	}

	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sched := scheduler.New(limiter, scheduler.Config{})
	client, err := river.NewClient(riverdatabasesql.New(db), sched.Configure(pool, &river.Config{Logger: quiet()}))
	if err != nil {
		log.Fatal(err)
	}
	jobs := sched.SQLJobs(client)

	for n, name := range []string{"ann", "bob"} {
		var in *scheduler.Inserted
		err := limiter.InSQLTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) (err error) {
			if _, err = tx.ExecContext(ctx, `INSERT INTO account VALUES ($1)`, name); err != nil {
				return err
			}
			in, err = jobs.ReserveTx(ctx, tx, sendArgs{n}, nil, Mails.Global())
			return err // a denial rolls back the account, too
		})
		if err != nil {
			log.Fatal(err)
		}
		if in.RunAt.IsZero() {
			fmt.Println(name, "gets the mail now")
		} else {
			fmt.Println(name, "gets the mail in", in.RunAt.Sub(in.At).Round(time.Hour))
		}
	}
	// Output:
	// ann gets the mail now
	// bob gets the mail in 1h0m0s
}
