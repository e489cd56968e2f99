package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// While a SERIALIZABLE transaction stays open, Postgres fails each one that reads a row which many
// have written since. Takes and what gives tokens back go on: they write the row, and do not read
// it. A denial and the choice of a shard read, which InTx does outside of the transaction.
func TestATransactionThatStaysOpenStopsNoTakes(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the settings are those of a server of its own")
	_, pool := pgtest.Own(t, pgserver.Setting("max_connections", "20"))
	ctx := t.Context()
	if err := schema.Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	rig.Exec(t, pool, `CREATE TABLE mine AS SELECT 0 AS n`)
	rig.Exec(t, pool, `CREATE TABLE others AS SELECT 0 AS n`)
	open := rig.Begin(t, pool, pgx.Serializable)
	if _, err := open.Exec(ctx, `UPDATE others SET n = n + 1`); err != nil { // which reads it, too
		t.Fatal(err)
	}
	clock := rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
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
	much := ratelimit.TokenBucket{Rate: 1e6, Period: time.Second}
	ample := ratelimit.MustDefine("ample", much)
	scarce := ratelimit.MustDefine("scarce", ratelimit.TokenBucket{Rate: 50, Period: time.Second,
		Capacity: ratelimit.Tokens(10)})
	take := func(tx pgx.Tx, r ratelimit.Request) (ratelimit.Result, error) {
		return l.RateLimit(ctx, tx, r)
	}
	for what, fn := range map[string]func(tx pgx.Tx) error{
		"take": func(tx pgx.Tx) error {
			_, err := take(tx, ample.For("take"))
			return err
		},
		"take what is scarce below": func(tx pgx.Tx) error {
			_, err := take(tx, scarce.For("denial").Rule(much))
			return err
		},
		"reserve": func(tx pgx.Tx) error {
			_, err := take(tx, scarce.For("reserve").OrReserve())
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

	inOurs := func(r ratelimit.Request) (ok bool) {
		t.Helper()
		if err := l.InTx(ctx, pool, func(_ context.Context, tx pgx.Tx) error {
			res, err := take(tx, r)
			ok = res.OK
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for denied := 0; denied < 100; {
		clock.Add(10 * time.Millisecond) // half a token
		if !inOurs(scarce.For("denial")) {
			denied++
		}
	}
	hot := ratelimit.MustDefine("hot", much, ratelimit.Shards(4))
	for range 1000 {
		inOurs(hot.Global())
	}
}
