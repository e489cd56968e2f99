package integration

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestSendBatchRefuses(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("refused", ratelimit.TokenBucket{Rate: 5, Period: rig.Never})
	none := func(*pgx.Batch) error { return nil }
	send := func(l *ratelimit.Limiter, db ratelimit.Beginner, queue func(*pgx.Batch) error,
		requests ...ratelimit.Request) error {
		_, err := l.SendBatch(t.Context(), db, queue, requests...)
		return err
	}
	for name, err := range map[string]error{
		"no request":       send(l, pool, none),
		"too much":         send(l, pool, none, limit.Global().Count(6)),
		"no pool":          send(l, nil, none, limit.Global()),
		"a nil pool":       send(l, (*pgxpool.Pool)(nil), none, limit.Global()),
		"no batch":         send(l, pool, nil, limit.Global()),
		"the zero Limiter": send(&ratelimit.Limiter{}, pool, none, limit.Global()),
	} {
		if !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := l.InTx(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		_, err := l.SendBatch(ctx, pool, none, limit.Global())
		return err
	})
	if !errors.Is(err, ratelimit.ErrNested) {
		t.Errorf("inside InTx: %v", err)
	}
	if res, err := l.SendBatch(t.Context(), pool, none, limit.Global()); err != nil || !res.OK {
		t.Errorf("an empty batch: %+v, %v", res, err)
	}
}

// A connection that is in a transaction begins no second one: its COMMIT would be that of the first.
func TestAConnectionThatIsInATransactionIsRefused(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("inside", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	oops := errors.New("oops")
	for name, second := range map[string]func(context.Context, *pgx.Conn) error{
		"InTx": func(ctx context.Context, conn *pgx.Conn) error {
			return l.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error { return l.Consume(ctx, tx, k) })
		},
		"SendBatch": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := l.SendBatch(ctx, conn, write(2), k)
			return err
		},
	} {
		outer := func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO message (id) VALUES (1)`); err != nil {
				t.Error(err)
			}
			if err := second(ctx, tx.Conn()); !errors.Is(err, ratelimit.ErrNested) {
				t.Errorf("%s: %v", name, err)
			}
			return oops
		}
		if err := l.InTx(t.Context(), pool, outer); !errors.Is(err, oops) {
			t.Errorf("%s: %v", name, err)
		}
		if err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			return outer(t.Context(), tx)
		}); !errors.Is(err, oops) {
			t.Errorf("%s: %v", name, err)
		}
		if n := messages(t, pool); n != 0 {
			t.Errorf("%s: %d messages were committed", name, n)
		}
	}
	wantValue(t, l, pool, k, 10)
}

// What pgx cannot encode, or Postgres cannot prepare, was not sent: its outcome is known.
func TestSendBatchTellsOfAnArgumentThatCannotBeSent(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("unsent", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	for name, queue := range map[string]func(*pgx.Batch){
		"too large": func(b *pgx.Batch) { b.Queue(`SELECT $1::int4`, int64(1)<<40) },
		"no value":  func(b *pgx.Batch) { b.Queue(`SELECT $1::int4`, make(chan int)) },
		"no table":  func(b *pgx.Batch) { b.Queue(`SELECT FROM nowhere`) },
	} {
		for range 2 { // the second time the statements are prepared
			_, err := l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
				b.Queue(`SELECT 1`)
				queue(b)
				return nil
			}, k)
			if err == nil || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), k); err != nil || s.Value != 10 {
		t.Errorf("%v tokens are left, %v; nothing was sent", s.Value, err)
	}
}
