package integration

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// A role with the privileges that the schema's documentation lists, and no others, can do all there
// is to do.
func TestTheDocumentedPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its roles are those of one server")
	owner := pgtest.Pool(t)
	mine := owner.Config().ConnConfig.RuntimeParams["search_path"]
	role := mine + "_app"
	execSQL(t, owner, `CREATE ROLE `+role)
	t.Cleanup(func() {
		_, _ = owner.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
	})
	grants := regexp.MustCompile(`(?s)GRANT .*?;`).
		FindAllString(strings.ReplaceAll(read(t, "../schema/doc.go"), "\n//", "\n"), -1)
	if len(grants) < 4 {
		t.Fatalf("the documentation lists only %q", grants)
	}
	for _, grant := range grants {
		grant = strings.NewReplacer("TO app", "TO "+role, "SCHEMA weir", "SCHEMA "+mine,
			"weir.weir_", mine+".weir_").Replace(grant)
		execSQL(t, owner, grant)
	}

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
	everyVerb(t, limiter(t, ratelimit.Config{}), app)
	if err := schema.Check(t.Context(), app); err != nil {
		t.Error(err)
	}
	if _, err := app.Exec(t.Context(), `DELETE FROM weir_balance`); sqlState(err) != "42501" {
		t.Errorf("the role may delete: %v", err)
	}
	if _, err := limiter(t, ratelimit.Config{}).Prune(t.Context(), app,
		ratelimit.PruneConfig{}); sqlState(err) != "42501" {
		t.Errorf("the role may prune: %v", err)
	}
	execSQL(t, owner, `GRANT DELETE ON weir_balance, weir_settled, weir_slot TO `+role)
	pruned(t, limiter(t, ratelimit.Config{}), app, ratelimit.PruneConfig{})
}
