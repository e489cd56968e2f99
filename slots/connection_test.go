package slots_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/slots"
)

// everything does all that there is.
func everything(t *testing.T, pool *pgxpool.Pool, cfg slots.Config) {
	t.Helper()
	s := open(t, pool, cfg)
	left := []*slots.Hold{try(t, s, three.For("k").Of(5)), try(t, s, three.For("k").Of(5)),
		try(t, s, three.For("k").Of(5)), try(t, s, three.For("k").Of(5))}
	if err := slots.Renew(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryAcquire(t.Context(), three.For("k")); !errors.Is(err, slots.ErrFull) {
		t.Fatal(err)
	}
	release(t, left[0])
	release(t, left[1])
	left = append(left[2:], try(t, s, three.For("k"))) // there may be some with larger numbers
	for _, h := range left {
		release(t, h)
	}
	err := s.Do(t.Context(), func(context.Context) error {
		n, err := s.Held(t.Context(), three.For("k"))
		if n != 1 {
			t.Errorf("%d are held", n)
		}
		return err
	}, three.For("k"), three.Global())
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryQueryModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(strings.ReplaceAll(mode.String(), " ", ""), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			everything(t, pool, slots.Config{})
		})
	}
}

// As a pooler would have it, which knows no names of statements, and whatever the defaults.
func TestDefaultsOfTheServerDoNotMatter(t *testing.T) {
	t.Parallel()
	for setting, value := range map[string]string{
		"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on",
		"standard_conforming_strings": "off", "timezone": "Asia/Kolkata",
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			everything(t, pgtest.Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams[setting] = value
			}), slots.Config{})
		})
	}
}

// Counting slots leaves no predicate locks, even if transactions are serializable by default: a
// transaction that leaves some may fail.
func TestSlotsAreCountedWithoutPredicateLocks(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	})
	s := open(t, pool, slots.Config{})
	if _, err := s.TryAcquire(t.Context(), three.For("k")); err != nil {
		t.Fatal(err)
	}
	other, err := pool.Begin(t.Context()) // while it is open, the predicate locks of others stay
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), `SELECT count(*) FROM weir_balance`); err != nil {
		t.Fatal(err)
	}
	want := hand.Place{Name: three.Name(), Key: "k"}
	if held, err := s.Hand().Held(t.Context(), []hand.Place{want}); err != nil || held[want] != 1 {
		t.Fatal(held, err)
	}
	if n := scan[int](t, pool, `SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND relation IN
		(SELECT 'weir_slot'::regclass UNION SELECT indexrelid FROM pg_index WHERE indrelid = 'weir_slot'::regclass)`); n != 0 {
		t.Errorf("%d predicate locks", n)
	}
}

// A slot is held from when its statement was sent, however long that has waited for a connection.
func TestAWaitForAConnectionIsNoTimeOfTheSlot(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := open(t, pool, slots.Config{TTL: time.Second})
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(1200*time.Millisecond, conn.Release)
	hold, err := s.Acquire(t.Context(), three.For("k"))
	if err != nil || hold.Err() != nil {
		t.Fatal(err, hold.Err())
	}
	if err := hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestASchemaOutsideTheSearchPath(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its schemas are of plain Postgres")
	pool := pgtest.Bare(t)
	name := scan[string](t, pool, `SELECT current_schema()`) + ` "o'dd\`
	if err := schema.Migrate(t.Context(), pool, schema.In(name)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(),
			`DROP SCHEMA `+pgx.Identifier{name}.Sanitize()+` CASCADE`); err != nil {
			t.Error(err)
		}
	})
	everything(t, pool, slots.Config{Schema: name})
	_, err := open(t, pool, slots.Config{}).TryAcquire(t.Context(), three.For("k"))
	if err == nil || !strings.Contains(err.Error(), "run schema.Migrate, and set Config.Schema") {
		t.Errorf("%v does not say what mends it", err)
	}
}

// The list is the one in schema/doc.go.
func TestTheDocumentedPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its roles are those of one server")
	pool := pgtest.Pool(t)
	name := scan[string](t, pool, `SELECT current_schema()`)
	role := "weir_slots_" + name[len(name)-10:]
	execSQL(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	cfg := pool.Config()
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `SET ROLE `+role)
		return err
	}
	app, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	execSQL(t, pool, `GRANT USAGE ON SCHEMA `+name+` TO `+role)
	_, err = open(t, app, slots.Config{}).TryAcquire(t.Context(), three.For("k"))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "42501" ||
		!strings.Contains(err.Error(), "the documentation of package schema") {
		t.Errorf("%v, want what is missing", err)
	}
	execSQL(t, pool, `GRANT SELECT, INSERT, UPDATE ON weir_slot TO `+role)
	everything(t, app, slots.Config{})
}
