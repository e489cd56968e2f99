package citus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var kept = ratelimit.MustDefine("kept", ratelimit.TokenBucket{Rate: 10, Period: 1000 * time.Hour})

// What is in the tables moves along, and who migrates again changes nothing.
func TestTablesWithBalancesAreDistributed(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	if err := migrate(t, pool); err != nil {
		t.Fatal(err)
	}
	plain := limiter(t, ratelimit.Config{}).Autocommit(pool)
	for i := range 20 {
		if err := plain.Consume(t.Context(), kept.For(fmt.Sprint("k", i)).Count(float64(i%10)+1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := migrate(t, pool, schema.Distributed()); err != nil {
			t.Fatal(err)
		}
	}
	spread := limiter(t, ratelimit.Config{Citus: true}).Autocommit(pool)
	for i := range 20 {
		res, err := spread.CheckRateLimit(t.Context(), kept.For(fmt.Sprint("k", i)).Count(9-float64(i%10)))
		if err != nil || !res.OK {
			t.Errorf("key %d: %+v, %v", i, res, err)
		}
		if res, err := spread.CheckRateLimit(t.Context(),
			kept.For(fmt.Sprint("k", i)).Count(10-float64(i%10))); err != nil || res.OK {
			t.Errorf("key %d: %+v, %v, want a denial", i, res, err)
		}
	}
	if n := scan[int](t, pool, `SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'weir_balance'::regclass`); n < 2 {
		t.Errorf("the balances are on %d nodes", n)
	}
	if err := schema.Check(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

// With a table of the application's, a tenant's tokens and its rows are of one node, and need no
// two-phase commit, however they are written and however its column is sorted. What is in the tables
// moves along.
func TestTokensStandWithTheTenantsRows(t *testing.T) {
	cluster(t)
	t.Parallel()
	for name, column := range map[string]string{"as the database sorts": "text", "as C sorts": `text COLLATE "C"`,
		"as English sorts": "text COLLATE english"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Bare(t)
			ddl(t, pool, `CREATE COLLATION english (provider = icu, locale = 'en')`,
				`CREATE TABLE "Order" (tenant `+column+` NOT NULL, id int NOT NULL, PRIMARY KEY (tenant, id))`,
				`SELECT create_distributed_table('"Order"', 'tenant', colocate_with => 'none')`)
			if err := migrate(t, pool); err != nil {
				t.Fatal(err)
			}
			was := limiter(t, ratelimit.Config{Portable: true}).Autocommit(pool)
			for i := range 20 {
				if err := was.Consume(t.Context(), kept.For(fmt.Sprint("k", i)).Count(float64(i%10)+1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := was.Consume(t.Context(), hot.Global()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := migrate(t, pool, schema.DistributedWith(`"Order"`)); err != nil {
					t.Fatal(err)
				}
			}
			l := limiter(t, ratelimit.Config{Citus: true, Colocated: true})
			for i := range 20 {
				s, err := l.Autocommit(pool).Value(t.Context(), kept.For(fmt.Sprint("k", i)))
				if want := 9 - float64(i%10); err != nil || s.Value < want || s.Value > want+0.01 {
					t.Errorf("key %d has %v, %v, want %v", i, s.Value, err, want)
				}
			}
			if got := left(t, l, pool); !near(got, 8*share-1) {
				t.Errorf("%v are left of the limit without keys", got)
			}
			standTogether(t, pool, l)
			areReadAndPruned(t, pool, l)
		})
	}
}

// areReadAndPruned looks at keys page by page, and prunes them in small batches. Some of these keys
// have another order where the tenant's column sorts otherwise than by bytes.
func areReadAndPruned(t *testing.T, pool *pgxpool.Pool, l *ratelimit.Limiter) {
	t.Helper()
	soon := ratelimit.MustDefine("soon", ratelimit.TokenBucket{Rate: 1, Period: time.Millisecond})
	keys := []string{"B", "Z", "_", "a", "a-b", "ab", "\u00e9", "\u4e2d"} // in the order of their bytes
	for _, key := range keys {
		if err := l.Autocommit(pool).Consume(t.Context(), soon.For(key)); err != nil {
			t.Fatal(err)
		}
	}
	look, err := inspect.New(pool, inspect.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for page := (inspect.Page{Most: 2}); ; {
		balances, next, err := look.Keys(t.Context(), soon.Name(), page)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range balances {
			seen = append(seen, b.Key)
		}
		if page.From = next; next == "" {
			break
		}
	}
	if !slices.Equal(seen, keys) {
		t.Errorf("read %q, want %q", seen, keys)
	}
	last := scan[time.Time](t, pool, `SELECT max(ts) FROM weir_balance WHERE name = $1`, soon.Name())
	until(t, "all are full", func() bool {
		return scan[time.Time](t, pool, `SELECT clock_timestamp()`).After(last.Add(2 * time.Millisecond))
	})
	before := scan[int](t, pool, `SELECT count(*) FROM weir_balance`)
	done, err := l.Prune(t.Context(), pool, ratelimit.PruneConfig{Batch: 3, Share: 1})
	left := scan[int](t, pool, `SELECT count(*) FROM weir_balance WHERE name = $1`, soon.Name())
	if err != nil || left != 0 || int(done.Looked) != before || int(done.Deleted) != len(keys) {
		t.Errorf("%v: %+v of %d rows, %d are left: want all %d keys deleted", err, done, before, left, len(keys))
	}
}

// standTogether takes a token of a tenant and writes a row of it, on one node.
func standTogether(t *testing.T, pool *pgxpool.Pool, l *ratelimit.Limiter) {
	t.Helper()
	groups := scan[int](t, pool, `SELECT count(DISTINCT colocationid) FROM pg_dist_partition
		WHERE logicalrelid IN ('"Order"'::regclass, 'weir_balance'::regclass, 'weir_settled'::regclass, 'weir_slot'::regclass)`)
	if groups != 1 {
		t.Errorf("the tables are of %d groups", groups)
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := l.Consume(t.Context(), tx, kept.For("acme")); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), `INSERT INTO "Order" VALUES ('acme', 1)`); err != nil {
			return err
		}
		var assigned bool // a local write, the marker among them, would have had one assigned
		if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned); err != nil {
			return err
		}
		if assigned {
			t.Error("the coordinator takes part in the transaction")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := scan[int](t, pool, `SELECT count(*) FROM "Order"`); n != 1 {
		t.Errorf("%d orders", n)
	}
}

func TestWhatCannotBeDistributedIsRefused(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	ddl(t, pool, `CREATE TABLE plain (tenant text PRIMARY KEY)`,
		`CREATE TABLE ids (tenant uuid PRIMARY KEY)`,
		`SELECT create_distributed_table('ids', 'tenant', colocate_with => 'none')`,
		`CREATE TABLE names (tenant varchar(20) PRIMARY KEY)`,
		`SELECT create_distributed_table('names', 'tenant', colocate_with => 'none')`,
		`CREATE TABLE numbers (tenant bigint PRIMARY KEY)`,
		`SELECT create_distributed_table('numbers', 'tenant', colocate_with => 'none')`,
		`CREATE TABLE tenants (tenant text PRIMARY KEY)`,
		`SELECT create_distributed_table('tenants', 'tenant', colocate_with => 'none')`)
	for table, want := range map[string]string{
		"plain":   "no distributed table of that name",
		"absent":  "no distributed table of that name",
		"ids":     "of type uuid, and Weir's keys are text",
		"names":   "of type character varying(20), and Weir's keys are text",
		"numbers": "of type bigint, and Weir's keys are text",
	} {
		err := migrate(t, pool, schema.DistributedWith(table))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: %v, want %q", table, err, want)
		}
		if n := scan[int](t, pool, `SELECT count(*) FROM pg_class WHERE relname = 'weir_balance' AND relnamespace = current_schema()::regnamespace`); n != 0 {
			t.Errorf("with %s: the tables were made", table)
		}
	}
	if err := migrate(t, pool, schema.Distributed()); err != nil {
		t.Fatal(err)
	}
	err := migrate(t, pool, schema.DistributedWith("tenants"))
	if err == nil || !strings.Contains(err.Error(), "distributed already, and not with tenants") {
		t.Errorf("got %v", err)
	}
}

// docs/distributed.md says so of columns by which Citus distributes no table.
func TestWhatCitusDistributesNothingBy(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	ddl(t, pool, `CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
		`CREATE TABLE loose (tenant text COLLATE loose PRIMARY KEY)`,
		`CREATE TABLE generated (id uuid NOT NULL, tenant text GENERATED ALWAYS AS (id::text) STORED)`)
	for table, want := range map[string]string{
		"loose":     "non deterministic collation",
		"generated": "Distribution column must not use GENERATED ALWAYS AS (...) STORED.",
	} {
		err := pgtest.Alone(t.Context(), pool, func() error {
			_, err := pool.Exec(t.Context(), `SELECT create_distributed_table($1, 'tenant', colocate_with => 'none')`, table)
			return err
		})
		var e *pgconn.PgError
		if !errors.As(err, &e) || !strings.Contains(e.Message+e.Detail, want) {
			t.Errorf("%s: got %v, want %q", table, err, want)
		}
	}
}

// undistribute is what the error of TestTablesAreDistributedAnew says.
var undistribute = []string{`SELECT undistribute_table('weir_balance')`,
	`SELECT undistribute_table('weir_settled')`, `SELECT undistribute_table('weir_slot')`}

// Tables that are distributed otherwise than asked are refused, with an error that says what to do;
// and that helps, and loses nothing.
func TestTablesAreDistributedAnew(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	ddl(t, pool, `CREATE TABLE "Order" (tenant text NOT NULL, id int NOT NULL, PRIMARY KEY (tenant, id))`,
		`SELECT create_distributed_table('"Order"', 'tenant', colocate_with => 'none')`)
	l := limiter(t, ratelimit.Config{Citus: true, Colocated: true})
	for _, r := range []ratelimit.Request{kept.For("acme").Count(3), hot.Global().Count(100)} {
		if err := l.Autocommit(pool).Consume(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want string, opts ...schema.Option) {
		t.Helper()
		err := migrate(t, pool, opts...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %q", err, want)
		}
		for _, sql := range undistribute {
			table := strings.Split(sql, "'")[1]
			if !strings.Contains(err.Error(), table) {
				t.Errorf("it does not name %s: %v", table, err)
			}
		}
	}
	refused("not with", schema.DistributedWith(`"Order"`))
	ddl(t, pool, undistribute[0])
	refused("not distributed together", schema.Distributed())
	refused("not distributed together", schema.DistributedWith(`"Order"`))
	ddl(t, pool, undistribute[1:]...)
	for range 2 {
		if err := migrate(t, pool, schema.DistributedWith(`"Order"`)); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), kept.For("acme")); err != nil || s.Value < 7 || s.Value > 7.01 {
		t.Errorf("%v are left, %v", s.Value, err)
	}
	if got := left(t, l, pool); !near(got, 8*share-100) {
		t.Errorf("%v are left of the limit without keys", got)
	}
	standTogether(t, pool, l)
}
