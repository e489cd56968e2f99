// Package pgtest gives each test a schema of its own, on one Postgres server for the whole test
// process, and leaves neither behind.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestIt(t *testing.T) {
//		t.Parallel()
//		pool := pgtest.Pool(t)
//
// The server is the one that [pgserver.Start] finds: the one named by DATABASE_URL, say, where no
// more is needed than the privilege to create schemas.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/schema"
)

var server = sync.OnceValues(func() (*pgserver.Server, error) {
	started = true
	switch url, bin := os.Getenv("WEIR_CITUS_URL"), os.Getenv("WEIR_CITUS_BIN"); {
	case url != "":
		if err := os.Setenv("DATABASE_URL", url); err != nil {
			return nil, err
		}
	case bin != "":
		var err error
		if cluster, err = pgserver.StartCluster(context.Background(), bin); err != nil {
			return nil, err
		}
		return cluster[0], nil
	}
	return pgserver.Start(context.Background())
})

// patience is how long making a schema and cleaning up may take on a busy machine. On a cluster
// each waits for its turn: see Alone.
func patience() time.Duration {
	if Citus() {
		return 5 * time.Minute
	}
	return time.Minute
}

// What is written by server, and read when all tests have ended.
var (
	started bool
	cluster pgserver.Cluster // none of WEIR_CITUS_URL
)

// Main is the body of a TestMain. The server is started by the first test that needs it, and
// stopped at the end; then no goroutine may be left, except those that known names.
//
// Properties draw the same cases in each run, so that a run that fails where the one before did not
// tells of a change. Where WEIR_TEST_DURATION is a minute or more, they draw others each time.
func Main(m *testing.M, known ...goleak.Option) {
	if d, err := time.ParseDuration(os.Getenv("WEIR_TEST_DURATION")); err != nil ||
		d < time.Minute {
		if flag.Lookup("rapid.seed") != nil {
			if err := flag.Set("rapid.seed", "1"); err != nil { // -rapid.seed overrides it
				panic(err)
			}
		}
	}
	code := m.Run()
	if len(left.drops) > 0 {
		unlock()
	}
	for _, drop := range left.drops {
		if err := drop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if opened != nil {
		opened.Close()
	}
	if started {
		if s, err := server(); err == nil {
			if err := errors.Join(s.Stop(), cluster.Stop()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
	}
	if code == 0 {
		if err := leaks(known); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Waiting is Main for tests that wait for clocks and rows more than they compute: so many run at
// once where -parallel does not say otherwise.
func Waiting(m *testing.M, parallel int, known ...goleak.Option) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err)
		}
	}
	Main(m, known...)
}

// Citus reports whether the tests run on a Citus cluster: the one whose coordinator WEIR_CITUS_URL
// names, or one of their own, of the servers in the folder WEIR_CITUS_BIN. Then Pool distributes
// the tables, and limiters need ratelimit.Config.Citus.
func Citus() bool { return os.Getenv("WEIR_CITUS_URL")+os.Getenv("WEIR_CITUS_BIN") != "" }

// OneServer skips the test on a cluster, and says why.
func OneServer(t testing.TB, why string) {
	t.Helper()
	if Citus() {
		fmt.Printf("%s: skipped on Citus: %s\n", t.Name(), why)
		t.Skip("skipped on Citus: " + why)
	}
}

// left is what is dropped when all tests have ended. On a cluster that has to wait: a DROP waits
// there for all transactions of other schemas that have written a table of the coordinator, and
// others wait for the DROP.
var left struct {
	sync.Mutex
	drops []func() error
}

func leave(drop func() error) {
	left.Lock()
	defer left.Unlock()
	left.drops = append(left.drops, drop)
}

// Server is the server that the tests of this process share.
func Server(t testing.TB) *pgserver.Server {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Shared is that server for an example, which has no test to fail.
func Shared() (*pgserver.Server, error) { return server() }

// Own starts a server for this test alone, for settings or faults that other tests would notice,
// and a pool on it.
func Own(t testing.TB, opts ...pgserver.Option) (*pgserver.Server, *pgxpool.Pool) {
	t.Helper()
	s, err := pgserver.Start(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, pool) })
	return s, pool
}

// Pool returns a pool on a fresh schema, with Weir's tables. Both are gone when the test ends. Each
// configure may change the pool's configuration before it is made; by default it has at most 10
// connections.
func Pool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	pool := Bare(t, configure...)
	maker := pool
	if cfg := pool.Config(); cfg.ConnConfig.RuntimeParams["lock_timeout"] != "" {
		// that is for the test's own statements: a migration waits, if other tests make tables
		delete(cfg.ConnConfig.RuntimeParams, "lock_timeout")
		var err error
		if maker, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		defer maker.Close()
	}
	if err := migrate(t.Context(), maker); err != nil {
		t.Fatal(err)
	}
	return pool
}

// migrate makes the tables.
func migrate(ctx context.Context, pool *pgxpool.Pool, opts ...schema.Option) error {
	if !Citus() {
		return schema.Migrate(ctx, pool, opts...)
	}
	return Alone(ctx, pool, func() error {
		return schema.Migrate(ctx, pool, append(opts, schema.Distributed())...)
	})
}

// Alone runs fn, which makes, distributes or drops tables. After a deadlock it runs it again: another
// test may be at its last statements. On a cluster it first waits for others that do the same: Citus
// locks what is common to all of them, each in an order of its own.
func Alone(ctx context.Context, pool *pgxpool.Pool, fn func() error) error {
	if Citus() {
		conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(1464158578)`); err != nil {
			return err
		}
	}
	for {
		err := fn()
		if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "40P01" {
			return err
		}
	}
}

// Recover ends what terminated backends have left of transactions in two phases, on all nodes of the
// cluster, and returns when nothing is left. Citus looks for them once a minute. Until then their
// rows stay locked, and a DROP of their tables waits.
func Recover(ctx context.Context, pool *pgxpool.Pool) error {
	const (
		end   = `SELECT run_command_on_all_nodes('SELECT recover_prepared_transactions()')`
		count = `SELECT sum(result::integer) FROM run_command_on_all_nodes(
			'SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()')`
	)
	for {
		left := 0
		_, err := pool.Exec(ctx, end)
		if err == nil { // a node that has just come back may refuse
			err = pool.QueryRow(ctx, count).Scan(&left)
		}
		if err == nil && left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d prepared transactions are left: %w", left, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unlock prepares a cluster for the drops. They tell what is wrong if it fails.
func unlock() {
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	if pool, err := admins(); err == nil {
		_ = Recover(ctx, pool)
	}
}

// Bare is Pool without the tables.
func Bare(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(Server(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	schema := schemaName(t)
	if err := run("CREATE SCHEMA " + pgx.Identifier{schema}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		drop := "DROP SCHEMA IF EXISTS " + pgx.Identifier{schema}.Sanitize() + " CASCADE"
		if Citus() {
			leave(func() error { return run(drop) })
			return
		}
		// not t.Fatal: where subtests were parallel, that fails the test without a word
		if err := run(drop); err != nil {
			t.Error(err)
		}
	})

	own := cfg.Copy()
	own.MaxConns = 10
	own.ConnConfig.RuntimeParams["search_path"] = schema
	if Citus() {
		own.ConnConfig.RuntimeParams["citus.shard_count"] = "4" // two a worker
	}
	for _, c := range configure {
		c(own)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, pool) })
	return pool
}

// shut closes the pool. That waits for connections that the test has not given back: then it is
// better told than to hang.
func shut(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pool.Close()
	}()
	select {
	case <-done:
	case <-time.After(patience()):
		t.Errorf("pgtest: the test has ended, and %d connections of its pool are still in use: a Release, Rollback, Commit or Close is missing",
			pool.Stat().AcquiredConns())
	}
}

// URL is what another process connects to in order to see what the pool sees.
func URL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	text, schema := Server(t).URL(), pool.Config().ConnConfig.RuntimeParams["search_path"]
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" { // key=value pairs, as DATABASE_URL may have them
		return text + " search_path=" + schema
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// schemaName is legible, for whoever looks into a server on which a test hangs, and free of
// anything that needs quoting.
func schemaName(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(t.Name()))
	return "weir_" + name[:min(len(name), 24)] + "_" + strings.ToLower(rand.Text()[:10])
}

// admins is a pool for what makes and drops schemas: a connection for each would cost more than
// that.
var admins = sync.OnceValues(func() (*pgxpool.Pool, error) {
	s, err := server()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(context.Background(), s.URL())
	opened = pool
	return pool, err
})

// opened is that pool once it is there, for Main to close.
var opened *pgxpool.Pool

// run runs a statement that makes or drops a schema.
func run(sql string) error {
	// t.Context has ended when the test cleans up
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	pool, err := admins()
	if err != nil {
		return err
	}
	err = Alone(ctx, pool, func() error {
		_, err := pool.Exec(ctx, sql)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
