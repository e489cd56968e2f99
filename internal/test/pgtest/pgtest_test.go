package pgtest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func current(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var name string
	if err := pool.QueryRow(t.Context(), "SELECT current_schema").Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

func exists(t *testing.T, pool *pgxpool.Pool, schema string) bool {
	t.Helper()
	var found bool
	if err := pool.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_namespace WHERE nspname = $1",
		schema).Scan(&found); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEachPoolHasASchemaUntilItsTestEnds(t *testing.T) {
	t.Parallel()
	watcher := pgtest.Bare(t)
	var names []string
	t.Run("Name: with Ümlaut, 'quotes\" and more than what fits into a name of Postgres, which is 63 bytes",
		func(t *testing.T) {
			first, second := pgtest.Pool(t), pgtest.Bare(t)
			names = append(names, current(t, first), current(t, second))
			if err := schema.Check(t.Context(), first); err != nil {
				t.Error(err)
			}
			if err := schema.Check(t.Context(), second); err == nil {
				t.Error("Bare has tables")
			}
			if got := first.Config().MaxConns; got != 10 {
				t.Errorf("it has up to %d connections, want 10", got)
			}
			for _, name := range names {
				if !exists(t, watcher, name) {
					t.Errorf("there is no schema %s", name)
				}
			}
		})
	if len(names) != 2 || names[0] == names[1] {
		t.Errorf("got the schemas %v, want two", names)
	}
	for _, name := range names {
		if exists(t, watcher, name) {
			t.Errorf("the schema %s is left", name)
		}
	}
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t,
		func(c *pgxpool.Config) { c.MaxConns = 2 },
		func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "weir-test" })
	var name string
	if err := pool.QueryRow(t.Context(), "SHOW application_name").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if name != "weir-test" || pool.Config().MaxConns != 2 {
		t.Errorf("got %q and %d connections", name, pool.Config().MaxConns)
	}
}

func TestURLLeadsToThePoolsSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var name string
	if err := conn.QueryRow(t.Context(), "SELECT current_schema").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if want := current(t, pool); name != want {
		t.Errorf("it leads to %s, want %s", name, want)
	}
}

// childEnv makes TestChild do what its value says, in a test process of its own.
const childEnv = "WEIR_TEST_CHILD"

func TestChild(t *testing.T) {
	how := os.Getenv(childEnv)
	if how == "" {
		t.Skip("skipped: only for TestMainCleansUp")
	}
	if how == "idle" {
		return
	}
	pool := pgtest.Bare(t)
	fmt.Println("URL", pgtest.Server(t).URL())
	switch how {
	case "leak":
		go func() { select {} }()
	case "fail":
		t.Error("on purpose")
	case "panic":
		if err := pool.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		panic("on purpose")
	}
}

func TestMainCleansUp(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]struct {
		code int
		says string
	}{
		"idle":  {0, ""},
		"pass":  {0, ""},
		"fail":  {1, "on purpose"},
		"leak":  {1, "found unexpected goroutines"},
		"panic": {2, "panic: on purpose"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v")
			cmd.Env = append(os.Environ(), childEnv+"="+how)
			out, _ := cmd.CombinedOutput() // the code tells
			if got := cmd.ProcessState.ExitCode(); got != want.code || !strings.Contains(string(out), want.says) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", got, want.code, want.says, out)
			}
			_, url, found := strings.Cut(string(out), "URL ")
			if found == (how == "idle") {
				t.Fatalf("a server: %v\n%s", found, out)
			}
			if !found || os.Getenv("DATABASE_URL") != "" {
				return
			}
			url, _, _ = strings.Cut(url, "\n")
			refused(t, url)
		})
	}
}

// refused waits until no server takes connections there.
func refused(t *testing.T, url string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := net.Dial("tcp", net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port)))
		if err != nil {
			return
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatalf("a server is left at port %d", cfg.Port)
		}
	}
}
