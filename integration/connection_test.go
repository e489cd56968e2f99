package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// everyVerb calls all there is, in a transaction and without, with the outcomes that it must have.
func everyVerb(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool) {
	t.Helper()
	bucket := ratelimit.MustDefine("bucket",
		ratelimit.TokenBucket{Rate: 2, Period: rig.Never, MaxReserved: ratelimit.Tokens(1)})
	window := ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 100, Period: rig.Never})
	for name, v := range map[string]rig.Verbs{
		"tx":         rig.Tx(l, pool, pgx.Serializable),
		"autocommit": l.Autocommit(pool),
	} {
		for i, step := range []struct {
			requests []ratelimit.Request
			ok       bool
		}{
			{[]ratelimit.Request{bucket.For(name)}, true},
			{[]ratelimit.Request{bucket.For(name), window.For(name).Count(10)}, true},
			// not expected: what was taken is given back
			{[]ratelimit.Request{window.For(name), bucket.For(name)}, false},
			{[]ratelimit.Request{window.For(name), bucket.For(name)}, false}, // expected
			{[]ratelimit.Request{bucket.For(name).OrReserve()}, true},
			{[]ratelimit.Request{bucket.For(name).OrReserve()}, false},
		} {
			res, err := v.RateLimit(t.Context(), step.requests...)
			if err != nil || res.OK != step.ok {
				t.Fatalf("%s, step %d: got %+v and %v, want granted %v", name, i, res, err, step.ok)
			}
		}
		if res, err := v.CheckRateLimit(t.Context(), window.For(name)); err != nil || !res.OK ||
			res.Outcomes[0].Value != 89 {
			t.Fatalf("%s: %+v and %v, want 89 left", name, res, err)
		}
		for _, pause := range []error{v.Pause(t.Context(), time.Hour, bucket.For(name),
			window.For("unused")), v.Pause(t.Context(), time.Hour, window.For(name))} {
			if pause != nil {
				t.Fatal(pause)
			}
		}
		if res, err := v.RateLimit(t.Context(), window.For(name)); err != nil || res.OK ||
			res.RetryAfter() < 59*time.Minute {
			t.Fatalf("%s: %+v and %v, want a pause", name, res, err)
		}
		if err := v.Resume(t.Context(), bucket.For(name), window.For(name), window.For("never used")); err != nil {
			t.Fatal(err)
		}
		if err := v.ResetRateLimit(t.Context(), bucket.For(name), window.For("unused")); err != nil {
			t.Fatal(err)
		}
		res, err := v.RateLimit(t.Context(), bucket.For(name).Count(2))
		if err != nil || !res.OK {
			t.Fatal(res, err)
		}
		if err := v.GiveBack(t.Context(), res); err != nil {
			t.Fatal(err)
		}
		if s, err := v.Value(t.Context(), bucket.For(name)); err != nil || s.Value != 2 {
			t.Fatalf("%s: %+v and %v, want 2 left", name, s, err)
		}
	}
	// contended rows queue, which is a statement of its own
	if err := contend(t.Context(), l, pool, bucket.For("contended").Count(0)); err != nil {
		t.Fatal(err)
	}
}

// contend makes a transaction lose a row, so that it queues for it and then runs again.
func contend(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) error {
	return queued(ctx, l, pool, pgx.Serializable, r, nothing)
}

// queued does some work in a transaction that has lost a row, has queued for it and has taken from
// it.
func queued(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	r ratelimit.Request, work func(tx pgx.Tx)) error {
	runs := 0
	return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(inner context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 {
			if _, err := tx.Exec(inner, `SELECT 1`); err != nil {
				return err
			}
			if _, err := l.Autocommit(pool).RateLimit(ctx, r); err != nil {
				return err
			}
		}
		if _, err := l.RateLimit(inner, tx, r); err != nil {
			return err
		}
		work(tx)
		return nil
	})
}

var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func TestEveryQueryModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		for _, portable := range []bool{false, true} {
			name := strings.ReplaceAll(mode.String(), " ", "")
			if portable {
				name += "/Portable"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
				everyVerb(t, rig.Limiter(t, ratelimit.Config{Portable: portable}), pool)
				clock := rig.Clock()
				everyVerbTwice := rig.Limiter(t, ratelimit.Config{Portable: portable, Clock: clock.Now})
				rig.Exec(t, pool, `DELETE FROM weir_balance`)
				everyVerb(t, everyVerbTwice, pool)
			})
		}
	}
}

func TestASchemaOutsideTheSearchPath(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its schemas are of plain Postgres")
	for name, path := range map[string]string{
		"Elsewhere":   `pg_catalog`,
		"Empty":       ``,
		"OddlyNamed":  ``,
		"Misleading!": `"$user"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Bare(t)
			var mine string
			if err := pool.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&mine); err != nil {
				t.Fatal(err)
			}
			mine += ` Limits "of" mine`
			t.Cleanup(func() {
				_, _ = pool.Exec(context.Background(), `DROP SCHEMA `+pgx.Identifier{mine}.Sanitize()+` CASCADE`)
			})
			if err := schema.Migrate(t.Context(), pool, schema.In(mine)); err != nil {
				t.Fatal(err)
			}
			cfg := pool.Config()
			cfg.ConnConfig.RuntimeParams["search_path"] = path
			elsewhere, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer elsewhere.Close()
			everyVerb(t, rig.Limiter(t, ratelimit.Config{Schema: mine}), elsewhere)
			everyVerb(t, rig.Limiter(t, ratelimit.Config{Schema: mine, Portable: true}),
				withRowsDeleted(t, elsewhere, mine))
		})
	}
}

func withRowsDeleted(t *testing.T, pool *pgxpool.Pool, schema string) *pgxpool.Pool {
	t.Helper()
	rig.Exec(t, pool, `DELETE FROM `+pgx.Identifier{schema, "weir_balance"}.Sanitize())
	return pool
}

// What an operator meets who has forgotten a step says which.
func TestErrorsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("missing", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	bare, migrated := pgtest.Bare(t), pgtest.Pool(t)
	rig.Exec(t, migrated, `SELECT 1`)
	for name, c := range map[string]struct {
		l    *ratelimit.Limiter
		pool *pgxpool.Pool
		sql  string // run first in the transaction
		want string
	}{
		"NotMigrated":   {rig.Limiter(t, ratelimit.Config{}), bare, "", "schema.Migrate"},
		"OtherSchema":   {rig.Limiter(t, ratelimit.Config{Schema: "nowhere"}), migrated, "", "Config.Schema"},
		"ReadOnly":      {rig.Limiter(t, ratelimit.Config{}), migrated, "SET TRANSACTION READ ONLY", "primary"},
		"AlreadyFailed": {rig.Limiter(t, ratelimit.Config{}), migrated, "SELECT 1/0", "earlier statement"},
		"OtherTables": {rig.Limiter(t, ratelimit.Config{}), migrated,
			"CREATE TEMP TABLE weir_balance (name text) ON COMMIT DROP", "search_path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx := rig.Begin(t, c.pool, pgx.Serializable)
			if c.sql != "" {
				_, _ = tx.Exec(t.Context(), c.sql)
			}
			_, err := c.l.RateLimit(t.Context(), tx, limit.For("k"))
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), `"missing"`) || rig.SQLState(err) == "" {
				t.Errorf("got %v, want it to say %q and to name the limit", err, c.want)
			}
		})
	}
	if _, err := rig.Limiter(t, ratelimit.Config{}).RateLimit(t.Context(), nil,
		limit.For("k")); err == nil || !strings.Contains(err.Error(), "open transaction") {
		t.Errorf("without a transaction: %v", err)
	}
}
