package integration

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "PgBouncer stands before one server here")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(strings.ReplaceAll(mode.String(), " ", ""), func(t *testing.T) {
			t.Parallel()
			direct := pgtest.Pool(t)
			cfg, err := pgxpool.ParseConfig(pgtest.Bouncer(t, direct))
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			// the pooler hands out sessions of anybody's search_path: the schema has to be named
			mine := direct.Config().ConnConfig.RuntimeParams["search_path"]
			everyVerb(t, rig.Limiter(t, ratelimit.Config{Schema: mine}), pool)
		})
	}
}
