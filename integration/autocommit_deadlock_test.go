package integration

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A statement that stands alone runs again however often it is ended by a deadlock, and does not
// cost more from then on: a deadlock says nothing about the session.
func TestAutocommitRunsAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	var batch afterBatch
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.Tracer = &batch
	})
	l := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("again", ratelimit.FixedWindow{Rate: 100, Period: rig.Century}).For("k")
	takeOK(t, first(l.RateLimit(t.Context(), limit)))

	if _, err := pool.Exec(t.Context(), `
		CREATE SEQUENCE deadlocks;
		CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('deadlocks') <= 3 THEN
				RAISE 'a deadlock of others' USING ERRCODE = 'deadlock_detected';
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER deadlock BEFORE UPDATE ON weir_balance FOR EACH ROW EXECUTE FUNCTION deadlock()`); err != nil {
		t.Fatal(err)
	}
	batch.do = func() { t.Error("a lone statement was sent in a batch, with BEGIN and COMMIT") }
	for range 2 {
		takeOK(t, first(l.RateLimit(t.Context(), limit)))
	}
	if s, err := l.Value(t.Context(), limit); err != nil || !rig.Near(s.Value, 97) {
		t.Errorf("%+v, %v, want 97 left", s, err)
	}
}

// A statement may fail at its COMMIT, after its answer. If it runs again and takes nothing, that
// answer does not count.
func TestAnAnswerBeforeAFailedCommitDoesNotCount(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("late deadlock", ratelimit.FixedWindow{Rate: 100, Period: rig.Century}).For("k")
	takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit)))
	rig.Exec(t, pool, `
		CREATE SEQUENCE commits;
		CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			RAISE 'a deadlock of others' USING ERRCODE = 'deadlock_detected';
		END $$;
		CREATE FUNCTION skips() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('commits') > 1 THEN
				RETURN NULL;
			END IF;
			RETURN NEW;
		END $$;
		CREATE CONSTRAINT TRIGGER fails AFTER UPDATE ON weir_balance DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION fails();
		CREATE TRIGGER skips BEFORE UPDATE ON weir_balance FOR EACH ROW EXECUTE FUNCTION skips()`)
	if res, err := l.Autocommit(pool).RateLimit(t.Context(), limit); err == nil && res.OK {
		t.Error("granted, though nothing was taken")
	}
	wantValue(t, l, pool, limit, 99)
}
