package citus

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// cluster skips the test where there is none.
func cluster(t testing.TB) {
	t.Helper()
	if !pgtest.Citus() {
		const why = "skipped: no cluster; see make test/citus"
		fmt.Printf("%s: %s\n", t.Name(), why)
		t.Skip(why)
	}
}

func limiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func exec(t testing.TB, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// migrate migrates while no other test makes or drops tables.
func migrate(t testing.TB, pool *pgxpool.Pool, opts ...schema.Option) error {
	t.Helper()
	return pgtest.Alone(t.Context(), pool, func() error {
		return schema.Migrate(t.Context(), pool, opts...)
	})
}

// ddl runs statements that make tables, distribute them or undo that, each while no other test does
// so.
func ddl(t testing.TB, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		err := pgtest.Alone(t.Context(), pool, func() error {
			_, err := pool.Exec(t.Context(), sql)
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// A transaction in two phases whose backend has ended keeps its locks no longer than until somebody
// asks, and so no DROP waits for it.
func TestWhatABackendHasPreparedEndsWhenItIsAskedFor(t *testing.T) {
	cluster(t)
	pool := pgtest.Bare(t)
	cfg := pool.Config().ConnConfig
	const find = `SELECT nodename, nodeport FROM pg_dist_node WHERE groupid > 0 ORDER BY groupid LIMIT 1`
	if err := pool.QueryRow(t.Context(), find).Scan(&cfg.Host, &cfg.Port); err != nil {
		t.Fatal(err)
	}
	worker, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = worker.Close(context.WithoutCancel(t.Context())) }()
	// As the coordinator names those of its backends.
	const orphan = `citus_0_1_1_1`
	if _, err := worker.Exec(t.Context(), `BEGIN; PREPARE TRANSACTION '`+orphan+`'`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := pgtest.Recover(ctx, pool); err != nil {
		t.Error(err)
	}
	var left bool
	if err := worker.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)`,
		orphan).Scan(&left); err != nil || left {
		t.Errorf("it is left: %v, %v", left, err)
	}
}
