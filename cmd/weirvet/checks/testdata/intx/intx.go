package intx

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
)

var (
	limiter *ratelimit.Limiter
	auto    *ratelimit.Autocommit
	merged  *ratelimit.Coalesced
	lease   *ratelimit.Lease
	client  *river.Client[pgx.Tx]
	request ratelimit.Request
	args    river.JobArgs
	events  = make(chan string)
)

func sends(ctx context.Context, pool *pgxpool.Pool, c *http.Client, req *http.Request, done chan<- error) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		events <- "begun" // want `the callback may run more than once, and sends to the channel events: a rollback does not undo that`
		select {
		case done <- nil: // want `sends to the channel done`
		default:
		}
		own := make(chan int, 1)
		own <- 1
		if _, err := http.Get("https://example.com"); err != nil { // want `calls net/http.Get: a rollback does not undo that`
			return err
		}
		if _, err := c.Do(req); err != nil { // want `calls \(\*net/http.Client\).Do: a rollback`
			return err
		}
		defer func() {
			events <- "ended" // want `sends to the channel events`
		}()
		go func() {
			events <- "beside" // want `sends to the channel events`
		}()
		return nil
	})
}

func userFrom(ctx context.Context) string { s, _ := ctx.Value(0).(string); return s }

func ping(ctx context.Context) error { return ctx.Err() }

func outside(ctx context.Context, pool *pgxpool.Pool, outer pgx.Tx, db *sql.DB, r *http.Request) error {
	return limiter.InTxOptions(r.Context(), pool, pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
		if err := limiter.Consume(ctx, tx, request); err != nil { // want `the callback uses the outer context ctx: use the ctx that it is given`
			return err
		}
		if err := limiter.Consume(r.Context(), tx, request); err != nil { // want `the callback uses the outer context r.Context\(\)`
			return err
		}
		if userFrom(r.Context()) == "" { // reads a value
			return nil
		}
		stoppable, stop := context.WithCancel(ctx) // want `the callback uses the outer context ctx`
		defer stop()
		if err := ping(stoppable); err != nil {
			return err
		}
		if err := ping(ctx); err != nil { // want `the callback uses the outer context ctx`
			return err
		}
		within, cancel := context.WithTimeout(ctx, time.Second) // want `the callback uses the outer context ctx`
		defer cancel()
		if err := limiter.Consume(within, outer, request); err != nil { // want `the callback uses outer, which is not its transaction: use the tx that it is given`
			return err
		}
		if _, err := pool.Exec(within, "SELECT 1"); err != nil { // want `the callback uses pool, which`
			return err
		}
		if _, err := db.ExecContext(within, "DELETE FROM t"); err != nil { // want `the callback may run more than once, and calls db.ExecContext: a rollback does not undo that`
			return err
		}
		var n int
		if err := db.QueryRowContext(within, "SELECT 1").Scan(&n); err != nil {
			return err
		}
		if err := helper(within, db); err != nil {
			return err
		}
		if err := limiter.Autocommit(pool).Consume(within, request); err != nil { // want `the callback uses pool, which`
			return err
		}
		if err := helper(within, pool); err != nil { // want `the callback uses pool, which`
			return err
		}
		_ = pool.Stat()
		slog.InfoContext(ctx, "denied")
		keep := context.WithoutCancel(ctx)
		if _, err := tx.Exec(keep, "SELECT 1"); err != nil {
			return err
		}
		return helper(within, tx)
	})
}

func committed(ctx context.Context, pool *pgxpool.Pool) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := auto.Consume(ctx, request); err != nil { // want `auto.Consume commits by itself: use a method that takes the callback's tx`
			return err
		}
		if res, err := merged.CheckRateLimit(ctx, request); err != nil || !res.OK {
			return err
		}
		if res, err := merged.RateLimit(ctx, request); err != nil || !res.OK { // want `merged.RateLimit commits by itself`
			return err
		}
		if res, err := lease.Take(ctx, 1); err != nil || !res.OK { // want `lease.Take commits by itself`
			return err
		}
		if res, err := lease.TakeInTx(ctx, tx, 1); err != nil || !res.OK {
			return err
		}
		if _, err := client.Insert(ctx, args, nil); err != nil { // want `client.Insert inserts outside of its transaction: call InsertTx`
			return err
		}
		if _, err := client.InsertTx(ctx, tx, args, nil); err != nil {
			return err
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := inner.Commit(ctx); err != nil {
			return err
		}
		defer tx.Rollback(ctx) // want `the callback calls Rollback of its transaction: return nil to commit, or an error to roll back`
		return tx.Commit(ctx)  // want `the callback calls Commit of its transaction`
	})
}

func grows(ctx context.Context, pool *pgxpool.Pool) ([]string, []string, error) {
	var names, good, after []string
	var counts [3]int
	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		names = append(names, "a") // want `appends to names without resetting it: what an earlier run appended stays`
		good = nil
		good = append(good, "a")
		own := []string{}
		own = append(own, "a")
		after = append(own, "b")
		counts[0]++
		return nil
	})
	_ = after
	return names, good, err
}

func later(ctx context.Context, pool *pgxpool.Pool) error {
	var after func()
	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		after = func() { events <- "committed" }
		return nil
	})
	if err == nil {
		after()
	}
	return err
}

func batch(ctx context.Context, pool *pgxpool.Pool) error {
	var rows []string
	res, err := limiter.SendBatch(ctx, pool, func(b *pgx.Batch) error {
		events <- "queued"         // want `sends to the channel events`
		rows = append(rows, "row") // want `appends to rows`
		b.Queue("SELECT 1").Exec(nil)
		b.Queue("SELECT 'a'").QueryRow(func(row pgx.Row) error {
			var s string
			rows = append(rows, s)
			return row.Scan(&s)
		})
		return nil
	}, request)
	if err != nil {
		return err
	}
	return res.Err()
}

type server struct {
	pool   *pgxpool.Pool
	events chan string
}

func (s *server) variable(ctx context.Context) error {
	save := func(ctx context.Context, tx pgx.Tx) error {
		s.events <- "saved"                    // want `sends to the channel s.events`
		_, err := s.pool.Exec(ctx, "SELECT 1") // want `the callback uses s.pool, which`
		return err
	}
	if err := limiter.InTx(ctx, s.pool, save); err != nil {
		return err
	}
	return limiter.InTx(ctx, s.pool, save)
}

// Not every function of a context and a transaction is such a callback.
func elsewhere(ctx context.Context, tx pgx.Tx) error {
	return run(ctx, func(_ context.Context, tx pgx.Tx) error {
		events <- "once"
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
}

func run(ctx context.Context, fn func(context.Context, pgx.Tx) error) error { return fn(ctx, nil) }

func helper(ctx context.Context, db any) error { return ctx.Err() }
