package integration

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A server that says itself that the outcome is unknown is believed; any other ERROR has rolled
// back.
func TestSendBatchTellsWhatIsUnknown(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("unknown", ratelimit.TokenBucket{Rate: 5, Period: rig.Never})
	rig.Exec(t, pool, `CREATE TABLE late (state text);
		CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = NEW.state; END $$;
		CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fails()`)
	for state, want := range map[string]bool{"40003": true, "23514": false} {
		for at, sql := range map[string]string{
			"at COMMIT":    `INSERT INTO late VALUES ('` + state + `')`,
			"before it":    `DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + state + `'; END $$`,
			"in a comment": `DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + state + `'; END $$ -- why`,
		} {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.SendBatch(t.Context(), conn, func(b *pgx.Batch) error {
				b.Queue(sql)
				return nil
			}, limit.Global())
			unknown := want && at == "at COMMIT"
			if err == nil || errors.Is(err, ratelimit.ErrOutcomeUnknown) != unknown {
				t.Errorf("%s %s: %v, want an unknown outcome: %v", state, at, err, unknown)
			}
			if status := conn.Conn().PgConn().TxStatus(); status != 'I' {
				t.Errorf("%s %s leaves the connection in status %q", state, at, status)
			}
			conn.Release()
		}
	}
}

// In the simple protocol all statements are one text. Whatever the caller's are, SendBatch does not
// say that it has committed if it has not, and leaves no transaction open.
func TestSendBatchOfOneText(t *testing.T) {
	t.Parallel()
	pool := written(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("oneText", ratelimit.TokenBucket{Rate: 5, Period: rig.Never})
	rig.Exec(t, pool, `CREATE TABLE other (id bigint PRIMARY KEY);
		CREATE TABLE child (id bigint REFERENCES other DEFERRABLE INITIALLY DEFERRED)`)
	for _, sql := range []string{
		`INSERT INTO other VALUES (1) -- a comment, in which pgx would end the statement`,
		`INSERT INTO other VALUES (2); INSERT INTO child VALUES (100)`,
	} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.SendBatch(t.Context(), conn, func(b *pgx.Batch) error {
			b.Queue(sql)
			return nil
		}, limit.Global())
		if err == nil {
			t.Errorf("%s is committed", sql)
		}
		if !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' {
			t.Errorf("%s leaves a transaction open", sql)
		}
		conn.Release()
	}
	wantValue(t, l, pool, limit.Global(), 5)
}
