//go:build unix

package pgserver

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestAStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	primary := running(t, Setting("synchronous_standby_names", "*"))
	if _, err := exec.LookPath(primary.Bin("pg_basebackup")); err != nil {
		fmt.Printf("pgserver: %s: skipped: %v\n", t.Name(), err)
		t.Skipf("skipped: %v", err)
	}
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(); err != nil {
			t.Error(err)
		}
	})
	if got := query(t, standby, "SELECT pg_is_in_recovery()::text"); got != "true" {
		t.Errorf("the standby is in recovery: %s", got)
	}
	conn, err := pgx.Connect(t.Context(), primary.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT '1' AS n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, standby, "UPDATE kept SET n = '2' RETURNING n"); got != "2" {
		t.Errorf("got %s", got)
	}
}
