package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// cluster skips a test of what the command does where the tables are distributed.
func cluster(t *testing.T) {
	t.Helper()
	if !pgtest.Citus() {
		const why = "skipped: it needs a Citus cluster: see make test/citus"
		fmt.Printf("%s: %s\n", t.Name(), why)
		t.Skip(why)
	}
}

// ofCluster takes from limits as programs do there.
func ofCluster(t *testing.T, pool *pgxpool.Pool) *ratelimit.Autocommit {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{Citus: true})
	if err != nil {
		t.Fatal(err)
	}
	return l.Autocommit(pool)
}

func scanned[T any](t *testing.T, pool *pgxpool.Pool, sql string) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// groups is how many groups of tables Citus keeps together are among these.
const groups = `SELECT count(DISTINCT colocationid) FROM pg_dist_partition WHERE logicalrelid IN
	(SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname IN ('weir_balance', 'weir_settled', 'weir_slot', 'orders'))`

// It is not parallel, and nor is the next one: nobody else makes tables meanwhile.
func TestMigrateDistributesTheTablesOfACluster(t *testing.T) {
	cluster(t)
	pool := pgtest.Bare(t)
	far := func(e *env) { e.local = func(*pgx.ConnConfig) bool { return false } }
	weirAs(t, pool, far, "migrate", "--distributed").
		fails(t, exitUsage, "--yes", "migrate schema", "and distribute its tables")
	weir(t, pool, "migrate").ok(t)
	if found := recovery(t, pool); len(found) != 0 {
		t.Errorf("before the tables are distributed: %+v", found)
	}
	limit := ratelimit.MustDefine("l", ratelimit.TokenBucket{Rate: 10, Period: never})
	take(t, pool, limit.For("k").Count(3))
	weirAs(t, pool, far, "migrate", "--distributed").fails(t, exitUsage, "--yes", "and distribute its tables")
	for range 2 {
		if out := weir(t, pool, "migrate", "--distributed").ok(t).out; !strings.Contains(out, "its tables are distributed") {
			t.Error(out)
		}
	}
	// As Citus asks for: it frees what the coordinator still has of the rows that have moved.
	exec(t, pool, `SELECT truncate_local_data_after_distributing_table('weir_balance')`)
	healthy(t, pool)
	every := scanned[int](t, pool, `SELECT setting::integer FROM pg_settings WHERE name = 'citus.recover_2pc_interval'`)
	if found := recovery(t, pool); every < 1 || every > 10_000 {
		finds(t, found, "server", note, "ALTER SYSTEM SET citus.recover_2pc_interval", "stay locked")
	} else if len(found) != 0 {
		t.Errorf("Citus looks every %d ms: %+v", every, found)
	}
	if n := scanned[int](t, pool, groups); n != 1 {
		t.Errorf("the tables are of %d groups", n)
	}
	if s, err := ofCluster(t, pool).Value(t.Context(), limit.For("k")); err != nil || s.Value < 7 || s.Value > 7.01 {
		t.Errorf("%+v, %v", s, err)
	}
	exec(t, pool, `CREATE TABLE orders (tenant text PRIMARY KEY)`)
	exec(t, pool, `SELECT create_distributed_table('orders', 'tenant', colocate_with => 'none')`)
	weir(t, pool, "migrate", "--distributed-with", "orders").
		fails(t, exitFailed, "distributed already, and not with orders", "undistribute_table")
}

func TestMigrateDistributesTheTablesOfAClusterWithOthers(t *testing.T) {
	cluster(t)
	pool := pgtest.Bare(t)
	exec(t, pool, `CREATE TABLE orders (tenant text PRIMARY KEY)`)
	weir(t, pool, "migrate", "--distributed-with", "orders").
		fails(t, exitFailed, "no distributed table of that name", "create_distributed_table")
	weir(t, pool, "limits").fails(t, exitFailed, "weir migrate") // nothing was made
	exec(t, pool, `SELECT create_distributed_table('orders', 'tenant', colocate_with => 'none')`)
	for range 2 {
		if out := weir(t, pool, "migrate", "--distributed-with", "orders").ok(t).out; !strings.Contains(out, "its tables are distributed") {
			t.Error(out)
		}
	}
	if n := scanned[int](t, pool, groups); n != 1 {
		t.Errorf("the tables are of %d groups", n)
	}
}

func TestOneServerHasNothingToDistributeTo(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it is about one server")
	pool := pgtest.Bare(t)
	for _, line := range []string{"migrate --distributed", "migrate --distributed-with orders"} {
		weir(t, pool, strings.Fields(line)...).fails(t, exitFailed, "has no extension citus")
	}
	weir(t, pool, "limits").fails(t, exitFailed, "weir migrate")
}

func TestCommandsOfACluster(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	auto := ofCluster(t, pool)
	rule := ratelimit.TokenBucket{Rate: 100, Period: never}
	keyed, hot := ratelimit.MustDefine("keyed", rule), ratelimit.MustDefine("hot", rule, ratelimit.Shards(4))
	for _, r := range []ratelimit.Request{keyed.For("acme").Count(40), keyed.For("globex").Count(5), hot.Global().Count(10)} {
		if err := auto.Consume(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	shown := func(into any, args ...string) {
		t.Helper()
		if err := json.Unmarshal([]byte(weir(t, pool, append(args, "--json")...).ok(t).out), into); err != nil {
			t.Fatal(err)
		}
	}
	var limits []struct {
		Name         string
		Keys, Shards int
		Paused       int
	}
	shown(&limits, "limits")
	if len(limits) != 2 || limits[0].Name != "hot" || limits[0].Keys != 1 || limits[0].Shards != 4 ||
		limits[1].Name != "keyed" || limits[1].Keys != 2 || limits[1].Shards != 1 {
		t.Errorf("%+v", limits)
	}
	if out := weir(t, pool, "show", "keyed").ok(t).out; !strings.Contains(out, "acme") || !strings.Contains(out, "globex") {
		t.Error(out)
	}
	for _, c := range []struct {
		name, key string
		left      float64
		shards    int
		request   ratelimit.Request
	}{{"keyed", "acme", 60, 1, keyed.For("acme")}, {"hot", "", 90, 4, hot.Global()}} {
		var b struct {
			Value       float64
			Shards      int
			PausedUntil time.Time `json:"paused_until"`
		}
		shown(&b, "show", c.name, c.key)
		if b.Value < c.left || b.Value > c.left+0.1 || b.Shards != c.shards {
			t.Errorf("%s: %+v", c.name, b)
		}
		weir(t, pool, "pause", c.name, c.key, "1h").ok(t)
		if res, err := auto.CheckRateLimit(t.Context(), c.request); err != nil || res.OK {
			t.Errorf("%s was paused: %+v, %v", c.name, res, err)
		}
		if shown(&b, "show", c.name, c.key); b.PausedUntil.IsZero() {
			t.Errorf("%s was paused: %+v", c.name, b)
		}
		weir(t, pool, "resume", c.name, c.key).ok(t)
		if res, err := auto.CheckRateLimit(t.Context(), c.request); err != nil || !res.OK {
			t.Errorf("%s goes on: %+v, %v", c.name, res, err)
		}
	}
	healthy(t, pool)
}

// River's tables, and those of jobs that wait in line, are on the coordinator.
func TestJobsOfACluster(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := queued(t)
	var l inLine
	weir(t, pool, "line", "sharedAPI", "eu", "--json").ok(t).json(t, &l)
	var order []string
	for _, tenant := range l.Tenants {
		order = append(order, tenant.Tenant)
	}
	if !slices.Equal(order, []string{"modest", "out", "greedy"}) || len(l.Jobs) != 6 || l.More {
		t.Errorf("%+v", l)
	} else if by := l.Tenants[1].PassedBy; by == nil || by.Limit != "orgTokens" || by.Key != "out" {
		t.Errorf("out is passed over by %+v", by)
	}
	var waits explained
	weir(t, pool, "explain", "2", "--json").ok(t).json(t, &waits)
	if !waits.Waits || waits.Tenant != "greedy" || waits.Turn != 5 || waits.Charged != 32.5 || len(waits.Before) != 3 {
		t.Errorf("%+v", waits)
	}

	limiter, client := withRiver(t, pool)
	jobs := scheduler.New(limiter, scheduler.Config{Jitter: -1}).Jobs(client)
	chat := ratelimit.MustDefine("chat", ratelimit.TokenBucket{Rate: 10, Period: never}).For("acme")
	var id int64
	for range 2 { // the second one waits for its tokens
		if err := limiter.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			in, err := jobs.InsertTx(ctx, tx, args{}, nil, chat.Count(10).OrReserve())
			if err == nil {
				err = in.Err()
			}
			if err == nil {
				id = in.Job.Job.ID
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	var reserved explained
	weir(t, pool, "explain", strconv.FormatInt(id, 10), "--json").ok(t).json(t, &reserved)
	if !reserved.Waits || reserved.Limit != "chat" || reserved.Key != "acme" || time.Until(reserved.Until) < never-time.Hour ||
		reserved.Balance == nil || reserved.Balance.Value > -9.9 {
		t.Errorf("%+v", reserved)
	}
}

// recovery is what the doctor finds about how soon Citus ends what a killed node has left.
func recovery(t *testing.T, pool *pgxpool.Pool) []finding {
	t.Helper()
	return slices.DeleteFunc(doctor(t, pool, same), func(f finding) bool {
		return !strings.Contains(f.Found, "citus.recover_2pc_interval")
	})
}

// healthy wants no findings but of servers that are set to lose data, as those of tests are.
func healthy(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, f := range doctor(t, pool, same) {
		if f.Check != "server" {
			t.Errorf("%+v", f)
		}
	}
}
