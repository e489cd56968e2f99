package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestTheDoctorFindsLongTransactions(t *testing.T) { // not beside others, whose transactions it would find
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "the nightly\treport"
	})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	e, _, _ := newEnv(map[string]string{"DATABASE_URL": pgtest.URL(t, pool)})
	var found []finding
	if err := e.open(t.Context(), func(ctx context.Context, s *session) error {
		p := &patient{session: s, long: time.Microsecond}
		err := p.transactions(ctx)
		found = p.findings
		return err
	}); err != nil {
		t.Fatal(err)
	}
	finds(t, found, "", wrong, fmt.Sprintf("process %d", pid), "idle in transaction")
	if strings.Contains(found[0].Found, "\t") {
		t.Errorf("%q", found[0].Found)
	}
	if found := doctor(t, pool, same); len(found) != 0 { // it is not yet too long
		t.Errorf("%+v", found)
	}
}

// flush makes the statistics of the pool's connections seen.
func flush(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		t.Skip("skipped: before Postgres 15 statistics come when they come")
	}
}

func one(c *pgxpool.Config) { c.MaxConns = 1 }

func TestTheDoctorFindsDeadRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, one)
	exec(t, pool, `ALTER TABLE weir_balance SET (autovacuum_vacuum_threshold = 0)`)
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 1, now(), 1, 1, 1000000 FROM generate_series(1, 15000) AS i`)
	seen, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = seen.Close(context.WithoutCancel(t.Context())) })
	// autovacuum, should it come just now, removes nothing that this transaction may see
	if _, err := seen.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `DELETE FROM weir_balance WHERE key <> '1'`)
	flush(t, pool)
	finds(t, doctor(t, pool, same), "dead rows", wrong, "dead rows beside 1 live", "VACUUM")
}

func TestTheDoctorFindsATableThatWasLarger(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, one)
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', repeat('k', 500) || i, 1, now(), 1, 1, 1000000 FROM generate_series(1, 20000) AS i`)
	exec(t, pool, `DELETE FROM weir_balance`)
	flush(t, pool)
	exec(t, pool, `SELECT pg_stat_reset_single_table_counters('weir_balance'::regclass)`) // as if vacuum had been there
	finds(t, doctor(t, pool, same), "dead rows", note, "it was larger once")
}

func TestTheDoctorFindsHotKeys(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.MustDefine("all", ratelimit.TokenBucket{Rate: 100, Period: never})
	take(t, pool, limit.For("us"), limit.For("them"), limit.For("nobody"))
	var held []pgx.Tx
	for _, key := range []string{"us", "them"} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.RateLimit(t.Context(), tx, limit.For(key)); err != nil {
			t.Fatal(err)
		}
		held = append(held, tx)
	}
	waiters := []string{"us", "us", "us", "us", "them"}
	done := make(chan error, len(waiters))
	for _, key := range waiters {
		go func() {
			done <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := l.RateLimit(t.Context(), tx, limit.For(key))
				return err
			})
		}()
	}
	wait(t, pool, len(waiters), `SELECT count(*) FROM pg_locks w WHERE locktype = 'transactionid' AND NOT granted
		AND EXISTS (SELECT FROM pg_locks h WHERE h.pid = w.pid AND relation = 'weir_balance'::regclass)`)
	found := doctor(t, pool, same)
	for _, tx := range held {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for range waiters {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	finds(t, found, "hot keys", note, "on average 4 transactions wait for one that has taken from all of us",
		"ratelimit.Shards(10)")
}

// Of a large table the doctor reads no row.
func TestTheDoctorDoesNotReadALargeTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	take(t, pool, ratelimit.MustDefine("all", ratelimit.TokenBucket{Rate: 100, Period: never}).Global())
	rows, err := pool.Query(t.Context(), "EXPLAIN ANALYZE "+strings.ReplaceAll(heldSQL, "{table}", "weir_balance"),
		[]string{"1"}, "weir_balance", 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.ContainsFunc(plan, func(line string) bool {
		return strings.Contains(line, "Scan on weir_balance") && strings.Contains(line, "(never executed)")
	}) {
		t.Errorf("%v, %s", err, strings.Join(plan, "\n"))
	}
}

// wait waits until a query counts n.
func wait(t *testing.T, pool *pgxpool.Pool, n int, sql string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var got int
		if err := pool.QueryRow(t.Context(), sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d wait, want %d", got, n)
			return
		}
	}
}

func TestTheDoctorFindsThatCallersQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	hot := ratelimit.MustDefine("all", ratelimit.TokenBucket{Rate: 100, Period: never}).For("us")
	const waiters = 3
	done := make(chan error, waiters)
	runs := 0
	err = l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 { // it loses the row, and so queues for it
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
			take(t, pool, hot)
		}
		if _, err := l.RateLimit(ctx, tx, hot); err != nil {
			return err
		}
		const own = `FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`
		var lock int64
		if err := tx.QueryRow(ctx, `SELECT classid::bigint << 32 | objid::bigint `+own).Scan(&lock); err != nil {
			return err
		}
		for range waiters {
			go func() {
				done <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1)`, lock)
					return err
				})
			}()
		}
		wait(t, pool, waiters, fmt.Sprintf(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND classid::bigint << 32 | objid::bigint = %d`, lock))
		finds(t, doctor(t, pool, same), "hot keys", note, "on average 3 transactions queue")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for range waiters {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
