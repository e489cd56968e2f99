package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// ran is what a command has done.
type ran struct {
	code     int
	out, err string
}

// newEnv is the surroundings of a command that is called by a script.
func newEnv(vars map[string]string) (*env, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	e := &env{in: strings.NewReader(""), out: &out, err: &errs, now: time.Now, local: local,
		getenv: func(name string) string {
			return vars[name]
		}}
	return e, &out, &errs
}

// weir runs the command on the database of the pool.
func weir(t *testing.T, pool *pgxpool.Pool, args ...string) ran {
	t.Helper()
	return weirAs(t, pool, func(*env) {}, args...)
}

func weirAs(t *testing.T, pool *pgxpool.Pool, change func(*env), args ...string) ran {
	t.Helper()
	vars := map[string]string{}
	if pool != nil {
		vars["DATABASE_URL"] = pgtest.URL(t, pool)
	}
	e, out, errs := newEnv(vars)
	change(e)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	code := run(ctx, e, args)
	return ran{code, out.String(), errs.String()}
}

// terminal makes it one that knows UTF-8.
func terminal(e *env) {
	e.outTerm, e.errTerm, e.inTerm, e.width = true, true, true, 100
	getenv := e.getenv
	e.getenv = func(name string) string {
		if name == "LANG" {
			return "en_US.UTF-8"
		}
		return getenv(name)
	}
}

func (r ran) ok(t *testing.T) ran {
	t.Helper()
	if r.code != 0 || r.err != "" {
		t.Fatalf("status %d\n%s%s", r.code, r.out, r.err)
	}
	return r
}

// fails wants the status and, of the error, each of the parts.
func (r ran) fails(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("status %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.err, part) {
			t.Errorf("the error does not say %q:\n%s", part, r.err)
		}
	}
}

func (r ran) json(t *testing.T, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil || d.More() {
		t.Fatalf("%v in:\n%s%s", err, r.out, r.err)
	}
}

func is(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

const never = 10000 * time.Hour

// take takes from limits as a program does.
func take(t *testing.T, pool *pgxpool.Pool, requests ...ratelimit.Request) {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := l.Autocommit(pool).RateLimit(t.Context(), requests...)
	if err != nil || !res.OK {
		t.Fatal(res, err)
	}
}

// left is what a program finds that knows the limit.
func left(t *testing.T, pool *pgxpool.Pool, r ratelimit.Request) ratelimit.State {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Autocommit(pool).Value(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheCommandLineIsChecked(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"nonsense":               `unknown command "nonsense"`,
		"limits x":               `unknown command "x"`,
		"limits --nonsense":      "unknown flag: --nonsense",
		"show":                   "show takes a LIMIT",
		"show l --most 0":        "--most is 0: want a number from 1 to 1000",
		"reset l":                "reset takes a LIMIT and a KEY",
		"reset l k --key k":      "and not both",
		"pause l k":              "pause takes a LIMIT, a KEY",
		"pause l k tomorrow":     `the duration is "tomorrow": want one such as 90s`,
		"explain x":              `the job is "x"`,
		"line":                   "line takes a LIMIT",
		"line l --most 501":      "--most is 501: want a number from 1 to 500",
		"limits --database ://u": "percent-encode",
		// a variable of a script that is not set
		"migrate --distributed-with=": "--distributed-with is empty",
		"doctor --role=":              "--role is empty",
	} {
		r := weir(t, pgtest.Pool(t), strings.Fields(line)...)
		r.fails(t, exitUsage, want, "weir help")
		if r.out != "" {
			t.Errorf("%s: it writes %s", line, r.out)
		}
	}
	for _, line := range []string{"", "help", "--help", "help doctor", "show --help"} {
		if r := weir(t, nil, strings.Fields(line)...); r.code != 0 || r.err != "" ||
			!strings.Contains(r.out, "--database") {
			t.Errorf("%q: %+v", line, r)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	bare, pool := pgtest.Bare(t), pgtest.Pool(t)
	for _, line := range []string{"limits", "show l", "reset l k", "reset --key k", "pause l k 1s",
		"resume l k", "prune", "explain 1", "line l"} {
		weir(t, bare, strings.Fields(line)...).fails(t, exitFailed, `run "weir migrate"`, "--schema")
	}
	weir(t, pool, "limits", "--schema", "no such").fails(t, exitFailed, `"no such"`, `run "weir migrate"`)
	weir(t, nil, "limits", "--database", "host=127.0.0.1 port=1 user=u dbname=d password=s3cret").
		fails(t, exitFailed, "refused",
			"--database")
	exec(t, pool, `INSERT INTO weir_schema (version, compatible) VALUES (1000, 1)`)
	left := weir(t, pool, "migrate", "--distributed").ok(t).out
	if !strings.Contains(left, "version 1000") || !strings.Contains(left, "distributed nothing") {
		t.Errorf("a later release's schema was left alone, and it says: %s", left)
	}
	exec(t, pool, `UPDATE weir_schema SET compatible = 99`)
	weir(t, pool, "limits").fails(t, exitFailed, "Install a later weir")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// An answer that cannot be written is no success.
func TestAnAnswerThatIsLostIsAFailure(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"limits", "limits --json", "migrate", "prune"} {
		r := weirAs(t, pgtest.Pool(t), func(e *env) { e.out = full{} }, strings.Fields(line)...)
		r.fails(t, exitFailed, "no space left")
	}
}

func TestChangesOfAnotherMachineAreConfirmed(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.3.2.1": true, "::1": true,
		"/var/run/postgresql": true, "@abstract": true,
		"db.example.com": false, "10.0.0.1": false, "localhost.example.com": false,
		"/tmp,10.0.0.1": false, "127.0.0.1,localhost": true,
	} {
		cfg, err := pgxpool.ParseConfig("host=" + host + " sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		if got := local(cfg.ConnConfig); got != want {
			t.Errorf("%s is local: %v", host, got)
		}
	}
	far, err := pgxpool.New(t.Context(), "postgres://u:s3cret@db.example.com/app")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	for name, tc := range map[string]struct {
		yes, term bool
		answer    string
		status    int // -1: goes on
	}{
		"a script":              {status: exitUsage},
		"a script with --yes":   {yes: true, status: -1},
		"yes":                   {term: true, answer: "y\n", status: -1},
		"YES":                   {term: true, answer: " YES \n", status: -1},
		"no":                    {term: true, answer: "n\n", status: exitFailed},
		"enter":                 {term: true, answer: "\n", status: exitFailed},
		"end":                   {term: true, answer: "", status: exitFailed},
		"something else":        {term: true, answer: "yesterday\n", status: exitFailed},
		"a terminal with --yes": {yes: true, term: true, status: -1},
	} {
		e, _, errs := newEnv(nil)
		e.yes, e.inTerm, e.in = tc.yes, tc.term, strings.NewReader(tc.answer)
		s := &session{e: e, pool: far}
		err := s.confirm(t.Context(), "reset it")
		_, usage := err.(*usageError) //nolint:errorlint // it is not wrapped here
		if (err == nil) != (tc.status == -1) || usage != (tc.status == exitUsage) {
			t.Errorf("%s: %v", name, err)
		}
		if asked := strings.Contains(errs.String(),
			`reset it in database "app" at db.example.com as "u"`); asked != (tc.term && !tc.yes) {
			t.Errorf("%s: it writes %q", name, errs)
		}
		if strings.Contains(errs.String(), "s3cret") {
			t.Error(errs)
		}
	}
}

// Each command that changes something asks, and those that only look do not.
func TestEachChangeIsConfirmed(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("l", ratelimit.TokenBucket{Rate: 10, Period: never})
	far := func(e *env) { e.local = func(*pgx.ConnConfig) bool { return false } }
	asked := func(answer string) func(e *env) {
		return func(e *env) {
			far(e)
			e.inTerm, e.in = true, strings.NewReader(answer)
		}
	}
	bare := pgtest.Bare(t)
	weirAs(t, bare, far, "migrate").fails(t, exitUsage, "--yes", "migrate schema")
	weir(t, bare, "limits").fails(t, exitFailed, "weir migrate")
	weirAs(t, bare, far, "migrate", "--yes").ok(t)
	weirAs(t, bare, far, "migrate").ok(t) // there is nothing to change

	pool := pgtest.Pool(t)
	take(t, pool, limit.For("k").Count(9))
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) VALUES ('l', 'idle', 10, now(), 10, 10, 1000)`)
	rows := func() (text string) {
		if err := pool.QueryRow(t.Context(), `SELECT string_agg(b::text, E'\n' ORDER BY key) FROM weir_balance b`).
			Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := rows()
	for _, line := range []string{"reset l k", "reset --key k", "pause l k 1h", "resume l k", "prune"} {
		weirAs(t, pool, far, strings.Fields(line)...).fails(t, exitUsage, "not on this machine", "--yes")
		weirAs(t, pool, asked("no\n"), strings.Fields(line)...).fails(t, exitFailed, "Go on? [y/N]",
			"nothing was changed")
		if after := rows(); after != before {
			t.Errorf("%s: was\n%s\nand is\n%s", line, before, after)
		}
	}
	for _, line := range []string{"limits", "show l", "show l k"} {
		weirAs(t, pool, far, strings.Fields(line)...).ok(t)
	}
	if r := weirAs(t, pool, asked("y\n"), "reset", "l", "k"); r.code != exitOK ||
		left(t, pool, limit.For("k")).Value != 10 {
		t.Errorf("%+v", r)
	}
	weirAs(t, pool, far, "reset", "l", "k", "--yes").ok(t)
}

// silent gives no answer until the test ends.
type silent struct {
	asked func()
	end   <-chan struct{}
}

func (s silent) Read([]byte) (int, error) {
	s.asked()
	<-s.end
	return 0, io.EOF
}

// The first Ctrl-C answers the question, and not only the second.
func TestAQuestionEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	e, _, errs := newEnv(map[string]string{"DATABASE_URL": pgtest.URL(t, pgtest.Bare(t))})
	e.local = func(*pgx.ConnConfig) bool { return false }
	end := make(chan struct{})
	defer close(end)
	e.inTerm, e.in = true, silent{interrupt, end}
	status := make(chan int, 1)
	go func() { status <- run(ctx, e, []string{"migrate"}) }()
	select {
	case code := <-status:
		ran{code, "", errs.String()}.fails(t, exitFailed, "interrupted: nothing was changed")
	case <-time.After(time.Minute):
		t.Fatal("it waits for an answer")
	}
}
