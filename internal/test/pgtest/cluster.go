package pgtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/schema"
)

// clusters bounds how many clusters tests have at once. Each is three servers.
var clusters = make(chan struct{}, 5)

// OwnCluster starts a Citus cluster for this test alone, whose nodes it may kill, and a pool on the
// coordinator, with Weir's tables. Where WEIR_CITUS_BIN is not set it skips the test, and says why.
func OwnCluster(t testing.TB, opts ...pgserver.Option) (pgserver.Cluster, *pgxpool.Pool) {
	t.Helper()
	bin := os.Getenv("WEIR_CITUS_BIN")
	if bin == "" {
		const why = "skipped: it needs servers of its own: set WEIR_CITUS_BIN to a folder of a server with Citus"
		fmt.Printf("%s: %s\n", t.Name(), why)
		t.Skip(why)
	}
	clusters <- struct{}{}
	t.Cleanup(func() { <-clusters })
	c, err := pgserver.StartCluster(t.Context(), bin, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), c[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, pool) })
	if err := schema.Migrate(t.Context(), pool, schema.Distributed()); err != nil {
		t.Fatal(err)
	}
	return c, pool
}
