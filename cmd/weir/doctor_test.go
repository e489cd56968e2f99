package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgserver"
	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

type report struct {
	Healthy  bool
	Schema   string
	Findings []finding
}

// doctor is what it finds, without what is fine, and without what the servers of the tests lack on purpose.
func doctor(t *testing.T, pool *pgxpool.Pool, change func(*env), args ...string) []finding {
	t.Helper()
	r := weirAs(t, pool, change, append([]string{"doctor", "--json", "--sample", "30ms"}, args...)...)
	var all report
	r.json(t, &all)
	bad := slices.ContainsFunc(all.Findings, func(f finding) bool { return f.Level == wrong })
	if r.err != "" || all.Healthy == bad || (r.code == exitFailed) != bad || r.code == exitUsage {
		t.Errorf("status %d, of %+v\n%s", r.code, all, r.err)
	}
	return slices.DeleteFunc(all.Findings, func(f finding) bool { return f.Level == fine || strings.HasPrefix(f.Found, "fsync is off") })
}

// finds wants one finding, and that it says each of the parts.
func finds(t *testing.T, found []finding, check string, l level, parts ...string) {
	t.Helper()
	if len(found) != 1 || found[0].Check != check || found[0].Level != l || found[0].Fix == "" {
		t.Fatalf("want one of %s that is %s: %+v", check, l, found)
	}
	for _, part := range parts {
		if !strings.Contains(found[0].Found+found[0].Fix, part) {
			t.Errorf("it does not say %q: %+v", part, found[0])
		}
	}
}

func same(*env) {}

// A database in good order has no findings, and so the status 0.
func TestTheDoctorFindsNothingWrongWithAHealthyDatabase(t *testing.T) {
	t.Parallel()
	server, pool := pgtest.Own(t, pgserver.Durable(), pgserver.Setting("max_prepared_transactions", "5"))
	in := "weir_doctor"
	if err := schema.Migrate(t.Context(), pool, schema.In(in)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), `DROP SCHEMA weir_doctor CASCADE`) })
	run := func() ran {
		return weirAs(t, nil, same, "doctor", "--sample", "30ms", "--long", "1us", "--database", server.URL(), "--schema", in)
	}
	exec(t, pool, `INSERT INTO weir_doctor.weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 5, now(), 10, 10, 1000000 FROM generate_series(1, 50) AS i`)
	is(t, run().ok(t).out, `
ok     server        nothing wrong
ok     pooler        nothing wrong
ok     clock         nothing wrong
ok     schema        schema "weir_doctor" is at version 1
ok     tables        nothing wrong
ok     storage       nothing wrong
ok     privileges    nothing wrong
ok     transactions  nothing wrong
ok     dead rows     nothing wrong
ok     hot keys      nothing wrong
ok     balances      50 keys of 1 limit
ok     settlements   nothing wrong
`[1:])

	// A transaction that is prepared, and forgotten.
	if _, err := pool.Exec(t.Context(), `BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'`); err != nil {
		t.Log(err, "(on a server without prepared transactions)")
		return
	}
	defer func() { _, _ = pool.Exec(context.Background(), `ROLLBACK PREPARED 'forgotten'`) }()
	if r := run(); r.code != exitFailed || !strings.Contains(r.out, "wrong  transactions  prepared transactions hold back vacuum: "+
		"'forgotten'\n"+strings.Repeat(" ", 21)+"Fix: COMMIT PREPARED") {
		t.Errorf("%+v", r)
	}
}

func TestTheDoctorJudgesSettings(t *testing.T) {
	t.Parallel()
	good := map[string]string{"server_version": "15.3", "server_version_num": "150003", "server_encoding": "UTF8", "fsync": "on",
		"synchronous_commit": "on",
		"autovacuum":         "on", "track_counts": "on", "default_transaction_isolation": "read committed",
		"default_transaction_read_only": "off", "recovery": "false"}
	judge := func(name, value string) []finding {
		p := &patient{check: "server"}
		settings := map[string]string{}
		for k, v := range good {
			settings[k] = v
		}
		if name != "" {
			settings[name] = value
		}
		p.settings(settings)
		return p.findings
	}
	if found := judge("", ""); len(found) != 0 {
		t.Errorf("of good ones: %+v", found)
	}
	finds(t, judge("server_version_num", "130012"), "server", wrong, "Upgrade Postgres")
	finds(t, judge("recovery", "true"), "server", wrong, "standby")
	finds(t, judge("fsync", "off"), "server", wrong, "fsync")
	finds(t, judge("autovacuum", "off"), "server", wrong, "autovacuum")
	finds(t, judge("track_counts", "off"), "server", wrong, "track_counts")
	finds(t, judge("server_encoding", "LATIN1"), "server", note, "UTF8")
}

func TestTheDoctorReadsSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		value string
		level level
	}{
		"default_transaction_isolation": {"serializable", note},
		"synchronous_commit":            {"off", note},
		"default_transaction_read_only": {"on", wrong},
	} {
		pool := pgtest.Pool(t)
		url := pgtest.URL(t, pool) + "&" + name + "=" + tc.value
		if !strings.Contains(url, "?") {
			url = pgtest.URL(t, pool) + " " + name + "=" + tc.value
		}
		finds(t, doctor(t, nil, same, "--database", url), "server", tc.level, name)
	}
}

func TestTheDoctorFindsAPooler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	url := pgtest.Bouncer(t, pool)
	where := pool.Config().ConnConfig.RuntimeParams["search_path"]
	finds(t, doctor(t, nil, same, "--database", url, "--schema", where), "pooler", note, "max_prepared_statements")
}

func TestTheDoctorFindsAClockThatIsWrong(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	off := func(d time.Duration) func(*env) {
		return func(e *env) { e.now = func() time.Time { return time.Now().Add(d) } }
	}
	finds(t, doctor(t, pool, off(-10*time.Second)), "clock", note, "ahead of that of this machine")
	finds(t, doctor(t, pool, off(time.Hour)), "clock", wrong, "behind that of this machine")
	if found := doctor(t, pool, off(0)); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

func TestTheDoctorFindsWhatIsNotMigrated(t *testing.T) {
	t.Parallel()
	finds(t, doctor(t, pgtest.Bare(t), same), "schema", wrong, "weir migrate")
	for sql, want := range map[string]string{
		`UPDATE weir_schema SET version = 7, compatible = 7`:          "later release",
		`INSERT INTO weir_schema (version, compatible) VALUES (3, 1)`: "version 2 is missing",
		`DELETE FROM weir_schema`:                                     "weir migrate",
	} {
		pool := pgtest.Pool(t)
		exec(t, pool, sql)
		finds(t, doctor(t, pool, same), "schema", wrong, want)
	}
	pool := pgtest.Pool(t)
	exec(t, pool, `INSERT INTO weir_schema (version, compatible) VALUES (2, 1)`)
	finds(t, doctor(t, pool, same), "schema", note, "later weir")
}

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
		"no options": {`ALTER TABLE weir_balance RESET (vacuum_truncate, autovacuum_vacuum_scale_factor)`, "storage", wrong,
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

func TestTheDoctorFindsMissingPrivileges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	in := pool.Config().ConnConfig.RuntimeParams["search_path"]
	role := in + "_r"
	exec(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	found := doctor(t, pool, same, "--role", role)
	if len(found) != 3 || found[0].Level != wrong || found[1].Level != note || !strings.Contains(found[1].Fix, "weir_slot") ||
		found[2].Level != note || !strings.Contains(found[2].Fix, "GRANT DELETE") {
		t.Fatalf("%+v", found)
	}
	exec(t, pool, strings.TrimSuffix(found[0].Fix, "."))
	exec(t, pool, strings.TrimSuffix(found[1].Fix, "."))
	finds(t, doctor(t, pool, same, "--role", role), "privileges", note, "GRANT DELETE")
	exec(t, pool, `REVOKE ALL ON weir_slot FROM `+role)
	exec(t, pool, strings.TrimSuffix(found[2].Fix, "."))
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

func TestTheDoctorFindsLongTransactions(t *testing.T) { // not beside others, whose transactions it would find
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "the nightly\treport" })
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	e, _, _ := newEnv(map[string]string{"DATABASE_URL": pgtest.URL(t, pool)})
	var found []finding
	if err := e.open(t.Context(), func(ctx context.Context, s *session) error {
		p := &patient{session: s, long: time.Microsecond}
		err := p.transactions(ctx)
		found = p.findings
		return err
	}); err != nil {
		t.Fatal(err)
	}
	finds(t, found, "", wrong, fmt.Sprintf("process %d", pid), "idle in transaction")
	if strings.Contains(found[0].Found, "\t") {
		t.Errorf("%q", found[0].Found)
	}
	if found := doctor(t, pool, same); len(found) != 0 { // it is not yet too long
		t.Errorf("%+v", found)
	}
}

// flush makes the statistics of the pool's connections seen.
func flush(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		t.Skip("skipped: before Postgres 15 statistics come when they come")
	}
}

func one(c *pgxpool.Config) { c.MaxConns = 1 }

func TestTheDoctorFindsDeadRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, one)
	exec(t, pool, `ALTER TABLE weir_balance SET (autovacuum_vacuum_threshold = 0)`) // by all means, but autovacuum needs a minute to come
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 1, now(), 1, 1, 1000000 FROM generate_series(1, 15000) AS i`)
	exec(t, pool, `DELETE FROM weir_balance WHERE key <> '1'`)
	flush(t, pool)
	finds(t, doctor(t, pool, same), "dead rows", wrong, "dead rows beside 1 live", "VACUUM")
}

func TestTheDoctorFindsATableThatWasLarger(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, one)
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', repeat('k', 500) || i, 1, now(), 1, 1, 1000000 FROM generate_series(1, 20000) AS i`)
	exec(t, pool, `DELETE FROM weir_balance`)
	flush(t, pool)
	exec(t, pool, `SELECT pg_stat_reset_single_table_counters('weir_balance'::regclass)`) // as if vacuum had been there
	finds(t, doctor(t, pool, same), "dead rows", note, "it was larger once")
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

func TestTheDoctorFindsHotKeys(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.MustDefine("all", ratelimit.TokenBucket{Rate: 100, Period: never})
	take(t, pool, limit.For("us"), limit.For("them"), limit.For("nobody"))
	var held []pgx.Tx
	for _, key := range []string{"us", "them"} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.RateLimit(t.Context(), tx, limit.For(key)); err != nil {
			t.Fatal(err)
		}
		held = append(held, tx)
	}
	waiters := []string{"us", "us", "us", "us", "them"}
	done := make(chan error, len(waiters))
	for _, key := range waiters {
		go func() {
			done <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := l.RateLimit(t.Context(), tx, limit.For(key))
				return err
			})
		}()
	}
	wait(t, pool, len(waiters), `SELECT count(*) FROM pg_locks w WHERE locktype = 'transactionid' AND NOT granted
		AND EXISTS (SELECT FROM pg_locks h WHERE h.pid = w.pid AND relation = 'weir_balance'::regclass)`)
	found := doctor(t, pool, same)
	for _, tx := range held {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for range waiters {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	finds(t, found, "hot keys", note, "on average 4 transactions wait for one that has taken from all of us", "ratelimit.Shards(10)")
}

// wait waits until a query counts n.
func wait(t *testing.T, pool *pgxpool.Pool, n int, sql string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var got int
		if err := pool.QueryRow(t.Context(), sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d wait, want %d", got, n)
			return
		}
	}
}

func TestTheDoctorFindsThatCallersQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	hot := ratelimit.MustDefine("all", ratelimit.TokenBucket{Rate: 100, Period: never}).For("us")
	const waiters = 3
	done := make(chan error, waiters)
	runs := 0
	err = l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 { // it loses the row, and so queues for it
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
			take(t, pool, hot)
		}
		if _, err := l.RateLimit(ctx, tx, hot); err != nil {
			return err
		}
		const own = `FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`
		var lock int64
		if err := tx.QueryRow(ctx, `SELECT classid::bigint << 32 | objid::bigint `+own).Scan(&lock); err != nil {
			return err
		}
		for range waiters {
			go func() {
				done <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1)`, lock)
					return err
				})
			}()
		}
		wait(t, pool, waiters, fmt.Sprintf(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND classid::bigint << 32 | objid::bigint = %d`, lock))
		finds(t, doctor(t, pool, same), "hot keys", note, "on average 3 transactions queue")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for range waiters {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
