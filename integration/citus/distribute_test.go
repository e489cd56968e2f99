package citus

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var kept = ratelimit.MustDefine("kept", ratelimit.TokenBucket{Rate: 10, Period: 1000 * time.Hour})

// What is in the tables moves along, and who migrates again changes nothing.
func TestTablesWithBalancesAreDistributed(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	plain := limiter(t, ratelimit.Config{}).Autocommit(pool)
	for i := range 20 {
		if err := plain.Consume(t.Context(), kept.For(fmt.Sprint("k", i)).Count(float64(i%10)+1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := schema.Migrate(t.Context(), pool, schema.Distributed()); err != nil {
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
// two-phase commit, however they are written.
func TestTokensStandWithTheTenantsRows(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	exec(t, pool, `CREATE TABLE "Order" (tenant text NOT NULL, id int NOT NULL, PRIMARY KEY (tenant, id))`,
		`SELECT create_distributed_table('"Order"', 'tenant', colocate_with => 'none')`)
	if err := schema.Migrate(t.Context(), pool, schema.DistributedWith(`"Order"`)); err != nil {
		t.Fatal(err)
	}
	groups := scan[int](t, pool, `SELECT count(DISTINCT colocationid) FROM pg_dist_partition
		WHERE logicalrelid IN ('"Order"'::regclass, 'weir_balance'::regclass, 'weir_settled'::regclass, 'weir_slot'::regclass)`)
	if groups != 1 {
		t.Errorf("the tables are of %d groups", groups)
	}
	l := limiter(t, ratelimit.Config{Citus: true, Colocated: true})
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := l.Consume(ctx, tx, kept.For("acme")); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO "Order" VALUES ('acme', 1)`); err != nil {
			return err
		}
		var assigned bool // a local write, the marker among them, would have had one assigned
		if err := tx.QueryRow(ctx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned); err != nil {
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
	exec(t, pool, `CREATE TABLE plain (tenant text PRIMARY KEY)`,
		`CREATE TABLE ids (tenant uuid PRIMARY KEY)`,
		`SELECT create_distributed_table('ids', 'tenant', colocate_with => 'none')`,
		`CREATE TABLE names (tenant varchar(20) PRIMARY KEY)`,
		`SELECT create_distributed_table('names', 'tenant', colocate_with => 'none')`,
		`CREATE TABLE tenants (tenant text PRIMARY KEY)`,
		`SELECT create_distributed_table('tenants', 'tenant', colocate_with => 'none')`)
	for table, want := range map[string]string{
		"plain":  "no distributed table of that name",
		"absent": "no distributed table of that name",
		"ids":    "of type uuid, and Weir's keys are text",
		"names":  "of type character varying(20), and Weir's keys are text",
	} {
		err := schema.Migrate(t.Context(), pool, schema.DistributedWith(table))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: %v, want %q", table, err, want)
		}
		if n := scan[int](t, pool, `SELECT count(*) FROM pg_class WHERE relname = 'weir_balance' AND relnamespace = current_schema()::regnamespace`); n != 0 {
			t.Errorf("with %s: the tables were made", table)
		}
	}
	if err := schema.Migrate(t.Context(), pool, schema.Distributed()); err != nil {
		t.Fatal(err)
	}
	err := schema.Migrate(t.Context(), pool, schema.DistributedWith("tenants"))
	if err == nil || !strings.Contains(err.Error(), "distributed already, and not with it") {
		t.Errorf("got %v", err)
	}
}
