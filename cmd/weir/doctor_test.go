package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

type report struct {
	Healthy  bool
	Schema   string
	Findings []finding
}

// doctor is what it finds, without what is fine, and without what the servers of the tests lack on
// purpose.
func doctor(t *testing.T, pool *pgxpool.Pool, change func(*env), args ...string) []finding {
	t.Helper()
	r := weirAs(t, pool, change, append([]string{"doctor", "--json", "--sample", "30ms"}, args...)...)
	var all report
	r.json(t, &all)
	bad := slices.ContainsFunc(all.Findings, func(f finding) bool { return f.Level == wrong })
	if r.err != "" || all.Healthy == bad || (r.code == exitFailed) != bad || r.code == exitUsage {
		t.Errorf("status %d, of %+v\n%s", r.code, all, r.err)
	}
	return slices.DeleteFunc(all.Findings, func(f finding) bool {
		return f.Level == fine || strings.HasPrefix(f.Found, "fsync is off")
	})
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
		return weirAs(t, nil, same, "doctor", "--sample", "30ms", "--long", "1us", "--database",
			server.URL(), "--schema", in)
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
	if _, err := pool.Exec(t.Context(),
		`BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'`); err != nil {
		t.Log(err, "(on a server without prepared transactions)")
		return
	}
	defer func() { _, _ = pool.Exec(context.Background(), `ROLLBACK PREPARED 'forgotten'`) }()
	if r := run(); r.code != exitFailed ||
		!strings.Contains(r.out, "wrong  transactions  prepared transactions hold back vacuum: "+
			"'forgotten'\n"+strings.Repeat(" ", 21)+"Fix: COMMIT PREPARED") {
		t.Errorf("%+v", r)
	}
}

func TestTheDoctorJudgesSettings(t *testing.T) {
	t.Parallel()
	good := map[string]string{"server_version": "15.3", "server_version_num": "150003",
		"server_encoding": "UTF8", "fsync": "on",
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
	const interval = "citus.recover_2pc_interval"
	finds(t, judge(interval, "60000"), "server", note, "every 1m (", "ALTER SYSTEM SET "+interval)
	finds(t, judge(interval, "10001"), "server", note, interval)
	finds(t, judge(interval, "-1"), "server", note, "never does", "ALTER SYSTEM SET "+interval)
	finds(t, judge(interval, "0"), "server", note, "never does")
	if found := judge(interval, "10000"); len(found) != 0 {
		t.Errorf("of ten seconds: %+v", found)
	}
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

// What was not looked at to the end is not healthy, also if it is interrupted between two checks.
func TestTheDoctorIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	e, out, errs := newEnv(map[string]string{"DATABASE_URL": pgtest.URL(t, pgtest.Pool(t))})
	times := 0
	e.now = func() time.Time {
		if times++; times == 6 { // the last of the check clock
			interrupt()
		}
		return time.Now()
	}
	code := run(ctx, e, []string{"doctor"})
	ran{code, out.String(), errs.String()}.fails(t, exitFailed, "interrupted")
	if out.Len() > 0 || times != 6 {
		t.Errorf("it writes %s, and has asked for the time %d times", out, times)
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
