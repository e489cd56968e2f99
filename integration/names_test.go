package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Another role may create in a schema of the search_path: Postgres 14 lets every role create in
// public. It makes operators with types for which pg_catalog has none, to run code with the rights
// of the application's role.
func TestTheOperatorsOfAnotherRoleAreNotUsed(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its roles are those of one server")
	owner := pgtest.Pool(t)
	own := owner.Config().ConnConfig.RuntimeParams["search_path"]
	hostile := own + "_public"
	for _, sql := range []string{
		`CREATE SCHEMA ` + hostile,
		`CREATE ROLE ` + hostile,
		`GRANT CREATE, USAGE ON SCHEMA ` + hostile + ` TO ` + hostile,
		`CREATE TABLE ` + hostile + `.loot (role text)`,
		`GRANT ALL ON ` + hostile + `.loot TO public`,
	} {
		rig.Exec(t, owner, sql)
	}
	t.Cleanup(func() {
		_, _ = owner.Exec(context.Background(), `DROP SCHEMA `+hostile+` CASCADE; DROP ROLE `+hostile)
	})
	err := pgx.BeginFunc(t.Context(), owner, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+hostile+`; SET LOCAL search_path = `+hostile+`;
			CREATE FUNCTION much(float8, int8) RETURNS float8 LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO loot VALUES (current_user); RETURN 1e300; END $$;
			CREATE FUNCTION much(float8, numeric) RETURNS float8 LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO loot VALUES (current_user); RETURN 1e300; END $$;
			CREATE FUNCTION yes(float8, int4) RETURNS boolean LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO loot VALUES (current_user); RETURN true; END $$;
			CREATE FUNCTION array_agg(float8) RETURNS float8[] LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO loot VALUES (current_user); RETURN '{1e300}'; END $$;
			CREATE OPERATOR / (leftarg = float8, rightarg = int8, function = much);
			CREATE OPERATOR * (leftarg = float8, rightarg = numeric, function = much);
			CREATE OPERATOR >= (leftarg = float8, rightarg = int4, function = yes)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := owner.Config()
	cfg.ConnConfig.RuntimeParams["search_path"] = hostile + `, ` + own
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	l := rig.Limiter(t, ratelimit.Config{Schema: own})
	three := ratelimit.MustDefine("three",
		ratelimit.TokenBucket{Rate: 1, Period: 1000 * time.Hour, Capacity: ratelimit.Tokens(3)})
	granted := 0
	for range 10 {
		res, err := l.Autocommit(pool).RateLimit(t.Context(), three.For("k"))
		if err != nil {
			t.Fatal(err)
		}
		if res.OK {
			granted++
		}
	}
	if granted != 3 {
		t.Errorf("%d of 10 were granted, want 3", granted)
	}
	everyVerb(t, l, pool)
	var ran int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM loot`).Scan(&ran); err != nil {
		t.Fatal(err)
	}
	if ran > 0 {
		t.Errorf("code of the other role ran %d times", ran)
	}
}
