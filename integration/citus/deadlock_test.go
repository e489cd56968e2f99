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

// Two transactions of which each reads what the other writes conflict at SERIALIZABLE. If both are
// on one worker, it finds that at COMMIT. Citus then reports the error of a worker that was lost,
// so InTx cannot tell them apart: it does not run the transaction again, and does not say that it
// was rolled back.
func TestAConflictThatAWorkerFindsAtCommitHasAnUnknownOutcome(t *testing.T) {
	cluster(t)
	pool := wide(t, pgtest.Pool(t))
	ddl(t, pool, `CREATE TABLE oncall (id text COLLATE "C" PRIMARY KEY, on_call bool NOT NULL)`,
		`SELECT create_distributed_table('oncall', 'id', colocate_with => 'weir_balance')`)
	doctors := []string{"d0"}
	for i := 1; len(doctors) < 2; i++ {
		if k := fmt.Sprint("d", i); portOf(t, pool, k) == portOf(t, pool, doctors[0]) {
			doctors = append(doctors, k)
		}
	}
	l := limiter(t, ratelimit.Config{Citus: true, IsoLevel: pgx.Serializable})
	for _, doctor := range doctors {
		exec(t, pool, `INSERT INTO oncall VALUES ('`+doctor+`', true)`)
	}

	var runs atomic.Int64
	var read, both sync.WaitGroup
	read.Add(2)
	told := make([]error, 2)
	for i, doctor := range doctors {
		both.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			meet := sync.OnceFunc(func() { read.Done(); read.Wait() })
			told[i] = l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				runs.Add(1)
				var other bool
				err := tx.QueryRow(ctx, `SELECT on_call FROM oncall WHERE id = $1`, doctors[1-i]).Scan(&other)
				if err == nil {
					err = l.Consume(ctx, tx, budget.For(doctor))
				}
				if err == nil {
					_, err = tx.Exec(ctx, `UPDATE oncall SET on_call = NOT $2 WHERE id = $1`, doctor, other)
				}
				meet()
				return err
			})
		})
	}
	both.Wait()
	won := 0
	for i, doctor := range doctors {
		left, still := capacity-1.0, false
		if told[i] == nil {
			won++
		} else {
			left, still = capacity, true
			var pg *pgconn.PgError
			if !errors.Is(told[i], ratelimit.ErrOutcomeUnknown) || !errors.As(told[i], &pg) || pg.Code != "XX000" {
				t.Errorf("got %v, want an unknown outcome for Citus' XX000", told[i])
			}
			t.Log(told[i])
		}
		state, err := l.Autocommit(pool).Value(t.Context(), budget.For(doctor))
		if err != nil || state.Value < left || state.Value >= left+0.9 { // a token comes an hour
			t.Errorf("%v: %v, %v are left, want %v", doctor, err, state.Value, left)
		}
		if got := scan[bool](t, pool, `SELECT on_call FROM oncall WHERE id = $1`, doctor); got != still {
			t.Errorf("%v is on call: %v, want %v", doctor, got, still)
		}
	}
	if won != 1 || runs.Load() != 2 {
		t.Errorf("%d of 2 were committed, in %d runs: want one, in two", won, runs.Load())
	}
}
