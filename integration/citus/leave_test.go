package citus

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// recipe is the SQL below a heading of docs/distributed.md, for the schema of the test.
func recipe(t *testing.T, heading, in string) string {
	t.Helper()
	_, section, _ := strings.Cut(read(t, "distributed.md"), "\n### "+heading+"\n")
	_, sql, found := strings.Cut(section, "```sql\n")
	sql, _, _ = strings.Cut(sql, "```")
	if !found || !strings.Contains(sql, "SET search_path TO weir;") {
		t.Fatalf("docs/distributed.md has no SQL for schema weir below %q: %s", heading, sql)
	}
	return strings.Replace(sql, "SET search_path TO weir;", "SET search_path TO "+in+";", 1)
}

// A database that leaves Citus as the document says keeps all balances, those of limits without keys
// among them, and all settlements and slots. So does one that comes back.
func TestWhoLeavesCitusKeepsItsBalances(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Bare(t)
	ddl(t, pool, `CREATE COLLATION english (provider = icu, locale = 'en')`,
		`CREATE TABLE "Order" (tenant text COLLATE english PRIMARY KEY)`,
		`SELECT create_distributed_table('"Order"', 'tenant', colocate_with => 'none')`)
	if err := migrate(t, pool, schema.DistributedWith(`"Order"`)); err != nil {
		t.Fatal(err)
	}
	there := limiter(t, ratelimit.Config{Citus: true})
	a := there.Autocommit(pool)
	for _, r := range []ratelimit.Request{kept.For("acme").Count(3), hot.For("acme").Count(100), hot.Global().Count(3 * share)} {
		if err := a.Consume(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	res, err := a.RateLimit(t.Context(), hot.Global().Count(10).OrReserve())
	if err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	if settled, err := a.Settle(t.Context(), res.Reservation()); err != nil || !settled {
		t.Fatal(settled, err)
	}
	before := left(t, there, pool)
	same := func(l *ratelimit.Limiter) {
		t.Helper()
		if got := left(t, l, pool); !near(got, before) {
			t.Errorf("%v are left of the limit without keys, %v were", got, before)
		}
		for r, want := range map[*ratelimit.Limit]float64{&kept: 7, &hot: 8*share - 100} {
			if s, err := l.Autocommit(pool).Value(t.Context(), r.For("acme")); err != nil || !near(s.Value, want) {
				t.Errorf("%v are left, %v, want %v", s.Value, err, want)
			}
		}
		if n := scan[int](t, pool, `SELECT count(*) FROM weir_slot WHERE name = 'one' AND key = 'acme' AND token = 7`); n != 1 {
			t.Errorf("%d slots", n)
		}
		if settled, err := l.Autocommit(pool).Settle(t.Context(), res.Reservation()); err != nil || settled {
			t.Errorf("settled again: %v, %v", settled, err)
		}
	}
	// A slot, and what a program without Config.Citus has written where nobody looks.
	exec(t, pool, `INSERT INTO weir_slot (until, token, holder, slot, name, key)
			VALUES (now() + interval '1 hour', 7, gen_random_uuid(), 1, 'one', 'acme')`,
		`INSERT INTO weir_balance SELECT 1, ts, capacity, rate, period, delay, moved, origin, paused_until, shard, name, ''
			FROM weir_balance WHERE name = 'hot' AND key <> 'acme' AND shard > 0`,
		`INSERT INTO weir_settled SELECT id, until, '' FROM weir_settled`)

	sql := recipe(t, "Leave Citus", scan[string](t, pool, `SELECT current_schema()`))
	for range 2 {
		ddl(t, pool, sql)
		if n := scan[int](t, pool, `SELECT count(*) FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'weir%'`); n != 0 {
			t.Errorf("Citus has %d of the tables", n)
		}
		if by := scan[string](t, pool, `SELECT string_agg(DISTINCT collation_name, ', ') FROM information_schema.columns
			WHERE table_schema = current_schema() AND table_name LIKE 'weir%' AND column_name = 'key'`); by != "C" {
			t.Errorf("keys are sorted by %s", by)
		}
		if err := schema.Check(t.Context(), pool); err != nil {
			t.Error(err)
		}
		same(limiter(t, ratelimit.Config{}))
		if err := migrate(t, pool, schema.Distributed()); err != nil {
			t.Fatal(err)
		}
		same(there)
	}
}
