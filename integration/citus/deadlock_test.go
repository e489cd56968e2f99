package citus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// Two transactions that lock rows of two workers in opposite orders deadlock, and neither worker
// can see that. Citus finds it and ends one of them, and InTx runs that one again. One that waits
// for tokens gives up before that.
func TestADeadlockOfTwoWorkersIsRunAgain(t *testing.T) {
	cluster(t)
	pool := wide(t, pgtest.Pool(t))
	ddl(t, pool, `CREATE TABLE stock (id text COLLATE "C" PRIMARY KEY, n int NOT NULL)`,
		`SELECT create_distributed_table('stock', 'id', colocate_with => 'weir_balance')`)
	here, there := "k0", ""
	for i := 1; there == ""; i++ {
		if k := fmt.Sprint("k", i); portOf(t, pool, k) != portOf(t, pool, here) {
			there = k
		}
	}
	exec(t, pool, `INSERT INTO stock VALUES ('`+here+`', 0)`, `INSERT INTO stock VALUES ('`+there+`', 0)`)
	l := limiter(t, ratelimit.Config{Citus: true, IsoLevel: pgx.ReadCommitted})
	take := l.Autocommit(pool)

	type step func(ctx context.Context, tx pgx.Tx) error
	consume := func(ctx context.Context, tx pgx.Tx) error { return l.Consume(ctx, tx, budget.For(there)) }
	sell := func(item string) step {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE stock SET n = n + 1 WHERE id = $1`, item)
			return err
		}
	}
	for name, c := range map[string]struct {
		steps     [2][2]step
		deadlocks int64 // at least
		here      int   // how many are sold
		there     int
		taken     float64
	}{
		"TwoRows":         {[2][2]step{{sell(here), sell(there)}, {sell(there), sell(here)}}, 1, 2, 2, 0},
		"TokensAndOneRow": {[2][2]step{{sell(here), consume}, {consume, sell(here)}}, 0, 2, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, pool, `UPDATE stock SET n = 0`)
			if err := take.Consume(t.Context(), budget.For(there)); err != nil { // a row to wait for
				t.Fatal(err)
			}
			before, err := take.Value(t.Context(), budget.For(there))
			if err != nil {
				t.Fatal(err)
			}
			var runs, deadlocks atomic.Int64
			var locked, both sync.WaitGroup
			locked.Add(2)
			for _, steps := range c.steps {
				both.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					meet := sync.OnceFunc(func() { locked.Done(); locked.Wait() })
					err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
						runs.Add(1)
						err := steps[0](ctx, tx)
						meet()
						if err == nil {
							err = steps[1](ctx, tx)
						}
						var pg *pgconn.PgError
						if errors.As(err, &pg) && pg.Code == "40P01" {
							deadlocks.Add(1)
						}
						return err
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			t.Logf("%d runs, %d of them ended by a deadlock", runs.Load(), deadlocks.Load())
			if runs.Load() < 3 || deadlocks.Load() < c.deadlocks {
				t.Errorf("%d runs, %d deadlocks: want that one ran again", runs.Load(), deadlocks.Load())
			}
			sold := `SELECT n FROM stock WHERE id = $1`
			if a, b := scan[int](t, pool, sold, here), scan[int](t, pool, sold, there); a != c.here || b != c.there {
				t.Errorf("%d and %d were sold, want %d and %d", a, b, c.here, c.there)
			}
			after, err := take.Value(t.Context(), budget.For(there))
			if taken := before.Value - after.Value; err != nil || taken > c.taken+0.001 || taken < c.taken-0.1 { // a token comes an hour
				t.Errorf("%v tokens are taken, %v, want %v", taken, err, c.taken)
			}
		})
	}
}
