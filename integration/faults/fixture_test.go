package faults

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// ours skips a test that stops or reconfigures the server, where that is somebody else's.
func ours(t *testing.T) {
	t.Helper()
	if os.Getenv("DATABASE_URL") != "" {
		fmt.Printf("faults: %s: skipped: DATABASE_URL names a server that is not ours to break\n", t.Name())
		t.Skip("skipped: DATABASE_URL names a server that is not ours to break")
	}
}

// fixture is a server that waits for the disk, an application on a schema of its own, and its
// callers.
type fixture struct {
	server  *pgserver.Server
	standby *pgserver.Server // of server, or nil: see setUpPair
	name    string           // of the schema, and of the application in pg_stat_activity
	pool    *pgxpool.Pool
	app     *app
	load    *load
	callers *callers

	rounds  int
	audited int              // ops
	merged  map[account]bool // that had a shard that waits for a merge; true: held only within bounds
}

func setUp(t *testing.T, configure ...func(*pgxpool.Config)) *fixture {
	t.Helper()
	s, err := pgserver.Start(t.Context(), durably()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return setUpOn(t, s, nil, configure...)
}

// durably has a server wait for the disk where WEIR_TEST_DURATION gives the faults time, as in
// production. Without it a server that is killed loses nothing either, as the system has what it has
// written, and a few rounds take half of the time.
func durably() []pgserver.Option {
	if os.Getenv("WEIR_TEST_DURATION") == "" {
		return nil
	}
	return []pgserver.Option{pgserver.Durable()}
}

// setUpOn is setUp on a server that runs, which may have a standby.
func setUpOn(t *testing.T, s, standby *pgserver.Server, configure ...func(*pgxpool.Config)) *fixture {
	t.Helper()
	f := &fixture{server: s, standby: standby,
		name: "weir_fault_" + strings.ToLower(rand.Text()[:12]), callers: newCallers(),
		merged: map[account]bool{}}
	f.exec(t, "CREATE SCHEMA "+f.name)
	t.Cleanup(func() {
		// not t.Fatal: where subtests were parallel, that fails the test without a word
		if err := f.asAdmin(t.Context(), time.Minute,
			executing("DROP SCHEMA IF EXISTS "+f.name+" CASCADE")); err != nil {
			t.Error(err)
		}
	})
	f.exec(t, tables)

	plain := f.connect(t)
	if err := schema.Migrate(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(plain), &rivermigrate.Config{Schema: f.name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	plain.Close()

	f.pool = f.connect(t, configure...)
	if f.app, err = newApp(f.pool, ratelimit.Config{}); err != nil {
		t.Fatal(err)
	}
	f.load = &load{app: f.app, desk: &desk{name: "key", prefix: "op"}, witness: f.callers, shards: everywhere(t)}
	return f
}

// everywhere is how many shards WEIR_TEST_SHARDS gives to the limits of all tests. Without it four
// of the faults run over limits with shards as well, the test of every kind over those alone, and
// the others over limits of one row.
func everywhere(t testing.TB) int {
	text := os.Getenv("WEIR_TEST_SHARDS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("WEIR_TEST_SHARDS is %q: want a number of shards", text)
	}
	return n
}

// several is how many shards the limits of a test have that needs shards.
const several = 5

// eachLayout runs the test with limits of one row, and with limits of several shards; with
// WEIR_TEST_SHARDS only with limits of so many.
func eachLayout(t *testing.T, test func(t *testing.T, f *fixture)) {
	layouts := []int{1, several}
	if n := everywhere(t); n > 1 {
		layouts = []int{n}
	}
	for _, shards := range layouts {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) {
			f := setUp(t)
			f.load.shards = shards
			test(t, f)
		})
	}
}

// connect makes a pool for the application.
func (f *fixture) connect(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(f.url(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 6
	for _, c := range configure {
		c(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// url is what the application's processes connect to.
func (f *fixture) url(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(f.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", f.name)
	q.Set("application_name", f.name)
	if f.standby != nil {
		other, err := url.Parse(f.standby.URL())
		if err != nil {
			t.Fatal(err)
		}
		u.Host += "," + other.Host
		q.Set("target_session_attrs", "read-write")
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// admin is a connection that no fault is meant for.
func (f *fixture) admin(t testing.TB, fn func(ctx context.Context, conn *pgx.Conn) error) {
	t.Helper()
	if err := f.asAdmin(t.Context(), hung, fn); err != nil {
		t.Fatal(err)
	}
}

// asAdmin is admin for at most so long.
func (f *fixture) asAdmin(
	ctx context.Context, most time.Duration, fn func(ctx context.Context, conn *pgx.Conn) error,
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most) // cleaning up uses it, too
	defer cancel()
	cfg, err := pgx.ParseConfig(f.server.URL())
	if err != nil {
		return err
	}
	cfg.RuntimeParams["search_path"] = f.name
	cfg.RuntimeParams["default_transaction_read_only"] = "off"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	for err != nil && classify(err) == away { // it may be recovering from a fault
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
		conn, err = pgx.ConnectConfig(ctx, cfg)
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return fn(ctx, conn)
}

func (f *fixture) exec(t testing.TB, statements ...string) {
	t.Helper()
	f.admin(t, executing(statements...))
}

func executing(statements ...string) func(ctx context.Context, conn *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	}
}

// settle waits until nothing that the application has ever sent can still happen: until it has no
// backend left.
func (f *fixture) settle(t testing.TB, pools ...*pgxpool.Pool) {
	t.Helper()
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		for {
			for _, p := range append(pools, f.pool) { // at each look: a timer of this process may have connected since
				p.Reset()
			}
			var n int
			err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`,
				f.name).Scan(&n)
			if err != nil || n == 0 {
				return err
			}
			if _, err := conn.Exec(ctx, `SELECT pg_sleep(0.002)`); err != nil { // between two polls
				return err
			}
		}
	})
}

// audit is to be called when the load has stopped and the server is back.
func (f *fixture) audit(t testing.TB, pools ...*pgxpool.Pool) []string {
	t.Helper()
	f.settle(t, pools...)
	b := f.books(t)
	f.callers.mu.Lock()
	defer f.callers.mu.Unlock()
	f.audited = len(f.callers.records)
	violations, bounded := audit(allTerms, b, f.callers.records)
	for acc := range b.ahead {
		f.merged[acc] = f.merged[acc] || slices.Contains(bounded, acc)
	}
	return violations
}

// fault is a way to break things.
type fault struct {
	rounds int
	// inject does it, under load. When it returns everything is as it was.
	inject func(t *testing.T, f *fixture)
	// hits are the classes of errors that the fault must have shown to callers; nothing but these,
	// allowed and denials may be seen.
	hits, allowed []class
	met           func() bool     // reports whether it has shown the rest; nil: there is no rest
	pools         []*pgxpool.Pool // that the application uses in turn; none: that of the fixture
}

// patience tells whether a fault is repeated that has not shown yet what it is to show: which
// caller it hits, and where, is luck. On a slow machine two minutes are a few rounds only.
func patience() func(done int) bool {
	end := time.Now().Add(2 * time.Minute)
	return func(done int) bool { return done < 20 || time.Now().Before(end) }
}

// run loads the application, injects the fault, waits until the same limiter works again, and
// audits; so many times.
func (f *fixture) run(t *testing.T, x fault) {
	t.Helper()
	start := time.Now()
	fresh := start
	enough, patient := rounds(t, x.rounds), patience()
	shown := func() bool { return !f.callers.spared(x) && (x.met == nil || x.met()) }
	for ; !enough(f.rounds) || !shown() && patient(f.rounds); f.rounds++ {
		if len(x.pools) > 0 {
			f.load.app = f.app.over(x.pools[f.rounds%len(x.pools)])
		}
		stop := f.load.start(t.Context())
		t.Cleanup(stop) // if the test ends here
		f.callers.await(t, granted, 30)
		x.inject(t, f)
		f.callers.await(t, granted, 30)
		stop()
		f.mustBalance(t, x.pools...)
		if f.audited > 30_000 || time.Since(fresh) > 2*time.Minute { // a soak: tokens flow in, if ever so slowly
			f.startAfresh(t)
			fresh = time.Now()
		}
	}
	f.report(t, x, time.Since(start))
}

func (f *fixture) mustBalance(t *testing.T, pools ...*pgxpool.Pool) {
	t.Helper()
	violations := f.audit(t, pools...)
	for i, v := range violations {
		if i == 20 {
			t.Errorf("and %d more", len(violations)-i)
			break
		}
		t.Errorf("round %d: %s", f.rounds, v)
	}
	if len(violations) > 0 {
		t.FailNow()
	}
}

func (f *fixture) startAfresh(t *testing.T) {
	t.Helper()
	f.exec(t, `TRUNCATE work, reservation, river_job, weir_balance, let_go`)
	f.callers.forget()
}

// rounds tells when it is enough.
func rounds(t *testing.T, n int) func(done int) bool {
	t.Helper()
	v := os.Getenv("WEIR_TEST_DURATION")
	if v == "" {
		return func(done int) bool { return done >= n }
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("WEIR_TEST_DURATION is %q: %v", v, err)
	}
	end := time.Now().Add(d)
	return func(done int) bool { return done >= n && time.Now().After(end) }
}
