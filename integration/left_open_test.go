package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/pgserver"
	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// While a SERIALIZABLE transaction stays open, Postgres fails each one that reads a row which many
// have written since. Takes, denials and what gives tokens back go on: they do not read the row
// with a predicate lock before they write it.
func TestATransactionThatStaysOpenStopsNoTakes(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the settings are those of a server of its own")
	_, pool := pgtest.Own(t, pgserver.Setting("max_connections", "20"))
	ctx := t.Context()
	if err := schema.Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	execSQL(t, pool, `CREATE TABLE mine AS SELECT 0 AS n`)
	execSQL(t, pool, `CREATE TABLE others AS SELECT 0 AS n`)
	open := begin(t, pool, pgx.Serializable)
	if _, err := open.Exec(ctx, `UPDATE others SET n = n + 1`); err != nil { // which reads it, too
		t.Fatal(err)
	}
	l := limiter(t, ratelimit.Config{})
	inTx := func(fn func(tx pgx.Tx) error) (failed int) {
		t.Helper()
		for range 1000 {
			err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, fn)
			if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Code == "40001" {
				failed++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return failed
	}

	// Each transaction that reads what it writes fails once enough of them have ended.
	if n := inTx(func(tx pgx.Tx) error {
		var n int
		if err := tx.QueryRow(ctx, `SELECT n FROM mine`).Scan(&n); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE mine SET n = n + 1`)
		return err
	}); n == 0 {
		t.Fatal("no transaction that reads what it writes failed: the server forgets too little")
	}
	ample := ratelimit.MustDefine("ample", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second})
	empty := ratelimit.MustDefine("empty", ratelimit.TokenBucket{Rate: 1, Period: never})
	take := func(tx pgx.Tx, r ratelimit.Request) (ratelimit.Result, error) {
		return l.RateLimit(ctx, tx, r)
	}
	for what, fn := range map[string]func(tx pgx.Tx) error{
		"take": func(tx pgx.Tx) error {
			_, err := take(tx, ample.For("take"))
			return err
		},
		"reserve": func(tx pgx.Tx) error {
			_, err := take(tx, empty.For("reserve").OrReserve())
			return err
		},
		"denial": func(tx pgx.Tx) error {
			_, err := take(tx, empty.For("denial"))
			return err
		},
		"give back": func(tx pgx.Tx) error {
			res, err := take(tx, ample.For("give back"))
			if err != nil {
				return err
			}
			return l.GiveBack(ctx, tx, res)
		},
		"settle": func(tx pgx.Tx) error {
			res, err := take(tx, ample.For("settle"))
			if err != nil {
				return err
			}
			_, err = l.Settle(ctx, tx, res.Reservation(), ample.For("settle").Count(2))
			return err
		},
	} {
		if n := inTx(fn); n > 0 {
			t.Errorf("%s: %d of 1000 transactions failed", what, n)
		}
	}

	// With shards InTx looks at them before it begins. A transaction of the caller's own reads them.
	hot := ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second},
		ratelimit.Shards(4))
	for range 1000 {
		if err := l.InTx(ctx, pool, func(_ context.Context, tx pgx.Tx) error {
			_, err := take(tx, hot.Global())
			return err
		}); err != nil {
			t.Fatal("a limit with shards:", err)
		}
	}
}
