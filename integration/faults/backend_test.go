package faults

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// Statements that do something to a backend of the application that is in a transaction.
const (
	terminateOne = `SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
		WHERE application_name = $1 AND xact_start IS NOT NULL ORDER BY random() LIMIT 1) AS one`
	cancelOne = `SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
		WHERE application_name = $1 AND state = 'active' ORDER BY random() LIMIT 1) AS one`
)

// pelt runs statements in turn until n backends were hit.
func (f *fixture) pelt(t *testing.T, n int, statements ...string) {
	t.Helper()
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for hit, i := 0, 0; hit < n; i++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-pace.C:
			}
			var one int
			if err := conn.QueryRow(ctx, statements[i%len(statements)], f.name).Scan(&one); err != nil {
				return err
			}
			hit += one
		}
		return nil
	})
}

func TestBackendsAreTerminated(t *testing.T) {
	t.Parallel()
	setUp(t).run(t, fault{rounds: 1, hits: []class{away}, allowed: []class{unknown},
		inject: func(t *testing.T, f *fixture) {
			f.pelt(t, 50, terminateOne)
		}})
}

func TestStatementsAreCanceled(t *testing.T) {
	t.Parallel()
	setUp(t).run(t, fault{rounds: 1, hits: []class{canceled}, allowed: []class{stale},
		inject: func(t *testing.T, f *fixture) {
			f.pelt(t, 80, cancelOne)
		}})
}

// Callers give up at any time, in the middle of COMMIT too. Some wait for long, or none would be
// granted on a machine on which all takes longer than the others wait.
func TestCallersGiveUp(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.load.timeout = func() time.Duration {
		if rand.N(4) == 0 {
			return hung
		}
		return rand.N(100 * time.Millisecond)
	}
	f.run(t, fault{rounds: 1, hits: []class{gaveUp}, allowed: []class{unknown}, inject: func(t *testing.T, f *fixture) {
		f.callers.await(t, gaveUp, 100)
	}})
}

// With one connection for all there must be neither a deadlock in the pool nor one that stays
// broken.
func TestAPoolOfOneConnectionUnderFaults(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	f.run(t, fault{rounds: 1, hits: []class{away, canceled}, allowed: []class{unknown, stale},
		inject: func(t *testing.T, f *fixture) {
			f.pelt(t, 20, terminateOne, cancelOne)
		}})
}

// Callers whose timeout is short get its error while another transaction holds their row, and nothing
// else happens to them. On a slow machine other statements have to end in that time, too.
func TestTimeoutsFire(t *testing.T) {
	t.Parallel()
	for name, hit := range map[string]class{"lock_timeout": locked, "statement_timeout": canceled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams[name] = "200ms" })
			f.run(t, fault{rounds: 1, hits: []class{hit}, allowed: []class{stale},
				inject: func(t *testing.T, f *fixture) {
					f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
						return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
							// rows that are there; new keys may be taken meanwhile
							if _, err := tx.Exec(ctx, `SELECT 1 FROM weir_balance FOR UPDATE`); err != nil {
								return err
							}
							f.callers.await(t, hit, 20)
							return nil
						})
					})
				}})
		})
	}
}

// Everybody wants the same few rows and nobody queues, while backends and then the server are
// killed.
func TestAStormOfConflictsUnderFaults(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t)
	portable, err := newApp(f.pool, ratelimit.Config{Portable: true, MaxAttempts: 10})
	if err != nil {
		t.Fatal(err)
	}
	f.app, f.load.app = portable, portable
	f.load.desk.hot = true
	f.run(t, fault{rounds: 2, hits: []class{away, canceled},
		allowed: []class{unknown, conflict, stale}, inject: func(t *testing.T, f *fixture) {
			storm := f.app.done.again.Load() + 50
			for n := 0; f.app.done.again.Load() < storm; n++ {
				if n == 10_000 {
					t.Fatal("ten thousand grants without fifty conflicts are no storm")
				}
				f.callers.await(t, granted, 1)
			}
			f.pelt(t, 30, terminateOne, cancelOne)
			if err := f.server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := f.server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.pelt(t, 10, terminateOne, cancelOne)
		}})
}
