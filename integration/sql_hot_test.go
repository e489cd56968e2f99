package integration

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// runs counts the attempts of all transactions.
type runs struct{ all atomic.Int64 }

func (r *runs) Decided(context.Context, ratelimit.DecidedEvent) {}

func (r *runs) Transacted(_ context.Context, e ratelimit.TransactedEvent) {
	r.all.Add(int64(e.Attempts))
}

// A transaction of database/sql that others have taken the row from again and again is let pass by
// those that come after it, whatever their callbacks do with the error that they get for it.
func TestWhoHasLostARowAgainAndAgainIsLetPassByThoseWhoComeLater(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	db, pool := sqlDB(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "starved" })
	var watch runs // each of the two may be told first
	l := rig.Limiter(t, ratelimit.Config{Observer: &watch})
	limit := ratelimit.MustDefine("starved", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	rig.Exec(t, pool, `CREATE TABLE did (who text)`)
	others := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	take := func(ctx context.Context, tx *sql.Tx) error { return l.InSQL(tx).Consume(ctx, limit.For("k")) }
	did := func(ctx context.Context, tx *sql.Tx, who string) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO did VALUES ($1)`, who)
		return err
	}

	waits, goOn := make(chan struct{}), make(chan struct{})
	starved := make(chan error, 1)
	go func() {
		run := 0
		starved <- l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `SELECT 1`); err != nil { // it has its snapshot now
				return err
			}
			if run++; run <= 9 {
				if _, err := others.RateLimit(ctx, limit.For("k")); err != nil {
					return err
				}
			} else {
				close(waits)
				<-goOn
			}
			if err := take(ctx, tx); err != nil {
				return err
			}
			return did(ctx, tx, "the first")
		})
	}()
	select {
	case <-waits:
	case err := <-starved:
		t.Fatalf("it ended before it had lost the row often enough: %v", err)
	}

	var began atomic.Int64
	later := make(chan error, 1)
	go func() {
		later <- l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
			n := began.Add(1)
			if err := take(ctx, tx); err != nil && n > 1 { // it goes on after the first error, as if it was granted
				return err
			}
			return did(ctx, tx, "the second")
		})
	}()
	// It waits in the queue, or it has passed.
	until(t, func() bool {
		var waiting int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) `+queueLocks+` AND NOT q.granted AND q.database = (
			SELECT oid FROM pg_database WHERE datname = current_database()) AND q.pid IN (
			SELECT pid FROM pg_stat_activity WHERE application_name = 'starved')`).Scan(&waiting); err != nil {
			t.Error(err)
		}
		return waiting > 0 || len(later) > 0
	})
	if len(later) > 0 {
		t.Errorf("the second has passed the first: %v", <-later)
	}
	close(goOn)
	if err := <-starved; err != nil {
		t.Fatal(err)
	}
	if err := <-later; err != nil {
		t.Fatal(err)
	}
	if n, all := began.Load(), watch.all.Load(); n != 2 || all != 10+2 {
		t.Errorf("the second began %d times, want 2, and both were told to have run %d times, want 12", n, all)
	}
	wantValue(t, l, pool, limit.For("k"), 100-9-2)
	var rows, firsts int
	if err := pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE who = 'the first') FROM did`).
		Scan(&rows, &firsts); err != nil ||
		rows != 2 || firsts != 1 {
		t.Errorf("%d rows were written, %d by the first, want 2 and 1: %v", rows, firsts, err)
	}
}
