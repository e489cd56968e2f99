package integration

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// A role with the privileges that the schema's documentation lists, and no others, can do all there
// is to do.
func TestTheDocumentedPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	owner := pgtest.Pool(t)
	mine := owner.Config().ConnConfig.RuntimeParams["search_path"]
	role := mine + "_app"
	create := `CREATE ROLE ` + role
	if pgtest.Citus() { // whose nodes connect to each other as the role
		create += ` LOGIN PASSWORD '` + owner.Config().ConnConfig.Password + `'`
	}
	execAgain(t, owner, create)
	t.Cleanup(func() {
		execAgain(t, owner, `DROP OWNED BY `+role)
		execAgain(t, owner, `DROP ROLE `+role)
	})
	grants := regexp.MustCompile(`(?s)GRANT .*?;`).
		FindAllString(strings.ReplaceAll(read(t, "../schema/doc.go"), "\n//", "\n"), -1)
	if len(grants) < 4 {
		t.Fatalf("the documentation lists only %q", grants)
	}
	for _, grant := range grants {
		if !pgtest.Citus() && strings.Contains(grant, "weir_two_phase") {
			continue // it is on Citus only
		}
		grant = strings.NewReplacer("TO app", "TO "+role, "SCHEMA weir", "SCHEMA "+mine,
			"weir.weir_", mine+".weir_").Replace(grant)
		execAgain(t, owner, grant)
	}
	execAgain(t, owner, `CREATE TABLE job (id int)`) // of the coordinator
	execAgain(t, owner, `GRANT INSERT ON job TO `+role)

	cfg := owner.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE `+role)
		return err
	}
	app, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	l := rig.Limiter(t, ratelimit.Config{})
	everyVerb(t, l, app)
	work := func(ctx context.Context, tx pgx.Tx) error {
		beside := ratelimit.MustDefine("beside", ratelimit.TokenBucket{Rate: 2, Period: rig.Never})
		if err := l.Consume(ctx, tx, beside.For("k")); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO job VALUES (1)`)
		return err
	}
	if err := l.InTx(t.Context(), app, work); err != nil {
		t.Errorf("InTx: %v", err)
	}
	err = pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error { return work(t.Context(), tx) })
	if err != nil {
		t.Errorf("a transaction of the caller's own: %v", err)
	}
	if err := schema.Check(t.Context(), app); err != nil {
		t.Error(err)
	}
	if _, err := app.Exec(t.Context(), `DELETE FROM weir_balance`); rig.SQLState(err) != "42501" {
		t.Errorf("the role may delete: %v", err)
	}
	if _, err := l.Prune(t.Context(), app, ratelimit.PruneConfig{}); rig.SQLState(err) != "42501" {
		t.Errorf("the role may prune: %v", err)
	}
	execAgain(t, owner, `GRANT DELETE ON weir_balance, weir_settled, weir_slot TO `+role)
	pruned(t, l, app, ratelimit.PruneConfig{})
}

// execAgain runs a statement again after a deadlock: on a cluster other tests make tables meanwhile.
func execAgain(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	for {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), sql)
		if err == nil {
			return
		}
		if rig.SQLState(err) != "40P01" {
			t.Errorf("%s: %v", sql, err)
			return
		}
	}
}
