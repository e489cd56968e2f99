package orms_test

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"go.uber.org/goleak"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/weir-go/weir/docs/orms"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

//go:embed sqlc/schema.sql
var tables string

// GORM with PrepareStmt starts a goroutine that it never ends.
func TestMain(m *testing.M) {
	pgtest.Main(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// A store saves the file of an owner, in one transaction with a token of the owner.
type store interface {
	Save(ctx context.Context, owner, name string) error
}

// A recipe makes a store. Those that begin the transaction by a verb of Weir run it again.
type recipe struct {
	reruns bool
	store  func(*testing.T, *ratelimit.Limiter, *pgxpool.Pool, *sql.DB) store
}

var recipes = map[string]recipe{
	"sqlc": {true, func(_ *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, _ *sql.DB) store {
		return orms.SQLC{Limiter: l, Pool: pool}
	}},
	"sqlc over database/sql": {true, func(_ *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.SQLCOverSQL{Limiter: l, DB: db}
	}},
	"GORM": {true, func(t *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.GORM{Limiter: l, DB: db, GORM: openGORM(t, db, gorm.Config{})}
	}},
	"GORM that prepares": {true, func(t *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.GORM{Limiter: l, DB: db, GORM: openGORM(t, db, gorm.Config{PrepareStmt: true, TranslateError: true})}
	}},
	"GORM begins": {false, func(t *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.GORMBegins{Limiter: l, GORM: openGORM(t, db, gorm.Config{})}
	}},
	"GORM that prepares begins": {false, func(t *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.GORMBegins{Limiter: l, GORM: openGORM(t, db, gorm.Config{PrepareStmt: true})}
	}},
	"Bun": {true, func(_ *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.Bun{Limiter: l, Bun: bun.NewDB(db, pgdialect.New())}
	}},
	"Bun begins": {false, func(_ *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.BunBegins{Limiter: l, Bun: bun.NewDB(db, pgdialect.New())}
	}},
	"Ent": {true, func(_ *testing.T, l *ratelimit.Limiter, _ *pgxpool.Pool, db *sql.DB) store {
		return orms.Ent{Limiter: l, DB: db}
	}},
}

func openGORM(t *testing.T, db *sql.DB, cfg gorm.Config) *gorm.DB {
	t.Helper()
	cfg.Logger = logger.Discard
	g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// fixture is a database with a table of files.
type fixture struct {
	pool    *pgxpool.Pool
	limiter *ratelimit.Limiter
}

// each runs a test on each recipe.
func each(t *testing.T, test func(*testing.T, *fixture, recipe, store)) {
	t.Parallel()
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{pool: pgtest.Pool(t)}
			f.exec(t, tables)
			db := stdlib.OpenDBFromPool(f.pool)
			t.Cleanup(func() { _ = db.Close() })
			var err error
			if f.limiter, err = ratelimit.New(ratelimit.Config{}); err != nil {
				t.Fatal(err)
			}
			test(t, f, r, r.store(t, f.limiter, f.pool, db))
		})
	}
}

func (f *fixture) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless ann has so many tokens left, and so many files.
func (f *fixture) want(t *testing.T, tokens float64, files int) {
	t.Helper()
	s, err := f.limiter.Autocommit(f.pool).Value(t.Context(), orms.Uploads.For("ann"))
	if err != nil || s.Value != tokens {
		t.Errorf("%v tokens left (%v), want %v", s.Value, err, tokens)
	}
	if n := f.count(t, `SELECT count(*) FROM upload`); n != files {
		t.Errorf("%d files, want %d", n, files)
	}
}

func (f *fixture) count(t *testing.T, query string) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func code(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	return pg.Code
}

// The file and its token are written by one transaction, which leaves nothing of either if it fails.
func TestAFileAndItsTokenAreOne(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, _ recipe, s store) {
		if err := s.Save(t.Context(), "ann", "a.txt"); err != nil {
			t.Fatal(err)
		}
		f.want(t, 1, 1)
		if n := f.count(t, `SELECT count(*) FROM upload u JOIN weir_balance b ON u.xmin = b.xmin`); n != 1 {
			t.Error("the file and the token are of two transactions")
		}

		err := s.Save(t.Context(), "ann", "a.txt") // the name exists: rolled back after the token was taken
		if err == nil {
			t.Error("a file was stored twice")
		}
		f.want(t, 1, 1)

		if err := s.Save(t.Context(), "ann", "b.txt"); err != nil {
			t.Fatal(err)
		}
		f.want(t, 0, 2)
		var denied *ratelimit.DeniedError
		if err := s.Save(t.Context(), "ann", "c.txt"); !errors.As(err, &denied) {
			t.Errorf("%v, want a denial", err)
		}
		f.want(t, 0, 2)
	})
}

// A conflict that a statement of the ORM meets is seen through its error: InTx and InSQLTx run everything again, and a token is
// taken once. A transaction that the ORM begins returns the conflict, and takes nothing.
func TestAConflictOfTheORM(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r recipe, s store) {
		f.exec(t, `CREATE SEQUENCE attempt`)
		f.exec(t, `CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('attempt') = 1 THEN RAISE 'meets another transaction' USING ERRCODE = 'serialization_failure'; END IF;
			RETURN new;
		END $$`)
		f.exec(t, `CREATE TRIGGER meet BEFORE INSERT ON upload FOR EACH ROW EXECUTE FUNCTION meet()`)
		err := s.Save(t.Context(), "ann", "a.txt")
		if !r.reruns {
			if code(err) != "40001" {
				t.Errorf("%v, want 40001", err)
			}
			f.want(t, 2, 0)
			err = s.Save(t.Context(), "ann", "a.txt")
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := f.count(t, `SELECT last_value FROM attempt`); n != 2 {
			t.Errorf("it ran %d times, want 2", n)
		}
		f.want(t, 1, 1)
	})
}
