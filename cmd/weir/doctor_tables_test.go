package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// Whatever is done to the tables on purpose is found, and nothing else.
func TestTheDoctorFindsWhatWasDoneToTheTables(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sql   string
		check string
		level level
		parts []string
	}{
		"a table is missing": {`DROP TABLE weir_slot`, "tables", wrong, []string{"there is no weir_slot"}},
		"unlogged":           {`ALTER TABLE weir_settled SET UNLOGGED`, "tables", wrong, []string{"weir_settled", "SET LOGGED"}},
		"no primary key": {`ALTER TABLE weir_balance DROP CONSTRAINT weir_balance_pkey`, "tables", wrong,
			[]string{"ADD PRIMARY KEY"}},
		"another index":      {`CREATE INDEX by_value ON weir_balance (value)`, "tables", wrong, []string{"DROP INDEX", "by_value"}},
		"a trigger":          {`CREATE TRIGGER odd BEFORE UPDATE ON weir_balance FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`, "tables", note, []string{"trigger odd"}},
		"row level security": {`ALTER TABLE weir_balance ENABLE ROW LEVEL SECURITY`, "tables", note, []string{"row level security"}},
		"fillfactor":         {`ALTER TABLE weir_balance SET (fillfactor = 100)`, "storage", wrong, []string{"SET (fillfactor = 85)"}},
		"no options": {`ALTER TABLE weir_balance RESET (vacuum_truncate, autovacuum_vacuum_scale_factor)`,
			"storage", wrong,
			[]string{"autovacuum_vacuum_scale_factor = 0.01, vacuum_truncate = false"}},
		"no autovacuum": {`ALTER TABLE weir_balance SET (autovacuum_enabled = off)`, "storage", wrong,
			[]string{"autovacuum_enabled = true"}},
		"the pages are gone":   {`TRUNCATE weir_balance`, "storage", wrong, []string{"has 0 pages", "generate_series(1, 320)"}},
		"a row without a rate": {`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) VALUES ('l', 'k', 1, now(), 1, 0, 1)`, "balances", wrong, []string{"1 keys make no balance: l of k"}},
		"a row of tomorrow":    {`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) VALUES ('l', 'k', 1, now() + interval '1 day', 1, 1, 1000000)`, "balances", wrong, []string{"in the future", "weir reset"}},
		"idle keys": {`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 1, now() - interval '2 days', 1, 1, 1000000 FROM generate_series(1, 20000) AS i; ANALYZE weir_balance`,
			"balances", note, []string{"weir prune"}},
		"old settlements": {`INSERT INTO weir_settled SELECT gen_random_uuid(), now() - interval '1 hour', 'k' FROM generate_series(1, 1000)`,
			"settlements", note, []string{"weir prune"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			exec(t, pool, tc.sql)
			finds(t, doctor(t, pool, same), tc.check, tc.level, tc.parts...)
		})
	}
}

// The fixes that it names for pages and options do fix them.
func TestTheFixesOfTheDoctorFix(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`TRUNCATE weir_balance`,
		`ALTER TABLE weir_balance SET (fillfactor = 100, autovacuum_vacuum_threshold = 50000)`,
		`CREATE INDEX by_value ON weir_balance (value)`} {
		pool := pgtest.Pool(t)
		exec(t, pool, sql)
		found := doctor(t, pool, same)
		if len(found) != 1 {
			t.Fatalf("%+v", found)
		}
		exec(t, pool, strings.TrimSuffix(found[0].Fix, "."))
		if found := doctor(t, pool, same); len(found) != 0 {
			t.Errorf("after its fix: %+v", found)
		}
	}
}

func TestTheDoctorFindsTwoSetsOfTables(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Pool(t), pgtest.Pool(t)
	path := func(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.RuntimeParams["search_path"] }
	url := strings.Replace(pgtest.URL(t, a), "search_path="+path(a), "search_path="+path(a)+","+path(b), 1)
	finds(t, doctor(t, nil, same, "--database", url), "tables", wrong, path(b), "Config.Schema")
}

// newRole makes a role without privileges.
func newRole(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	role := pool.Config().ConnConfig.RuntimeParams["search_path"] + "_r"
	exec(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	return role
}

func TestTheDoctorFindsMissingPrivileges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	role := newRole(t, pool)
	found := doctor(t, pool, same, "--role", role)
	if len(found) != 4 || found[0].Level != wrong || found[1].Level != note ||
		!strings.Contains(found[1].Fix, "weir_slot") ||
		found[2].Level != note || !strings.Contains(found[2].Fix, "weir_turn") ||
		found[3].Level != note || !strings.Contains(found[3].Fix, "GRANT DELETE") {
		t.Fatalf("%+v", found)
	}
	exec(t, pool, strings.TrimSuffix(found[0].Fix, "."))
	exec(t, pool, strings.TrimSuffix(found[1].Fix, "."))
	exec(t, pool, strings.TrimSuffix(found[2].Fix, "."))
	finds(t, doctor(t, pool, same, "--role", role), "privileges", note, "GRANT DELETE")
	exec(t, pool, `REVOKE ALL ON weir_slot FROM `+role)
	exec(t, pool, strings.TrimSuffix(found[3].Fix, "."))
	url := pgtest.URL(t, pool)
	if strings.Contains(url, "://") {
		url += "&role=" + role
	} else {
		url += " role=" + role
	}
	weir(t, nil, "prune", "--database", url).ok(t)
	finds(t, doctor(t, pool, same, "--role", role), "privileges", note, "may not hold slots", "GRANT INSERT")
	exec(t, pool, strings.TrimSuffix(found[1].Fix, "."))
	exec(t, pool, `REVOKE INSERT ON weir_settled FROM `+role)
	finds(t, doctor(t, pool, same, "--role", role), "privileges", wrong, "GRANT INSERT ON", "weir_settled")
	weir(t, pool, "doctor", "--role", "no_such_role").fails(t, exitUsage, `no role "no_such_role"`)
}

// Each privilege on each table of fair lines and AtOnce is looked at.
func TestTheDoctorFindsThatARoleMayNotUseFairLines(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	role := newRole(t, pool)
	exec(t, pool, `GRANT USAGE ON SCHEMA `+pool.Config().ConnConfig.RuntimeParams["search_path"]+` TO `+role)
	exec(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA `+
		pool.Config().ConnConfig.RuntimeParams["search_path"]+` TO `+role)
	if found := doctor(t, pool, same, "--role", role); len(found) != 0 {
		t.Fatalf("%+v", found)
	}
	for _, table := range []string{"weir_line", "weir_line_tenant", "weir_turn"} {
		for _, privilege := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			exec(t, pool, `REVOKE `+privilege+` ON `+table+` FROM `+role)
			found := doctor(t, pool, same, "--role", role)
			finds(t, found, "privileges", note, "fair lines or AtOnce", "GRANT "+privilege+" ON", table)
			exec(t, pool, strings.TrimSuffix(found[0].Fix, "."))
			if found := doctor(t, pool, same, "--role", role); len(found) != 0 {
				t.Errorf("after its fix: %+v", found)
			}
		}
	}
}

// Where the tables are distributed, a program requests two-phase commit by a DELETE on a table that
// is there for nothing else.
func TestTheDoctorFindsThatARoleMayNotRequestTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	role := newRole(t, pool)
	exec(t, pool, `GRANT USAGE ON SCHEMA `+pool.Config().ConnConfig.RuntimeParams["search_path"]+` TO `+role)
	exec(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA `+pool.Config().ConnConfig.RuntimeParams["search_path"]+` TO `+role)
	if found := doctor(t, pool, same, "--role", role); len(found) != 0 {
		t.Fatalf("%+v", found)
	}
	exec(t, pool, `CREATE TABLE weir_two_phase ()`)
	found := doctor(t, pool, same, "--role", role)
	finds(t, found, "privileges", wrong, "GRANT DELETE ON", "weir_two_phase")
	exec(t, pool, strings.TrimSuffix(found[0].Fix, "."))
	if found := doctor(t, pool, same, "--role", role); len(found) != 0 {
		t.Errorf("after its fix: %+v", found)
	}
}

func TestTheDoctorFindsUpdatesThatAreNotHOT(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, one)
	exec(t, pool, `CREATE INDEX by_value ON weir_balance (value)`)
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 1, now(), 1, 1, 1000000 FROM generate_series(1, 1500) AS i`)
	exec(t, pool, `UPDATE weir_balance SET value = value - 0.5`)
	exec(t, pool, `DROP INDEX by_value`)
	flush(t, pool)
	finds(t, doctor(t, pool, same), "storage", wrong, "of 1,500 updates", "0 % were HOT")
}
