package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// Each way to consume answers with nil what it grants, and with a DeniedError what it denies. What
// may be granted for later it refuses, and takes nothing.
func TestConsume(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	ways := map[string]func(context.Context, ...ratelimit.Request) error{
		"InTx": func(ctx context.Context, requests ...ratelimit.Request) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				return l.Consume(ctx, tx, requests...)
			})
		},
		"DatabaseSQL": func(ctx context.Context, requests ...ratelimit.Request) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := l.InSQL(tx).Consume(ctx, requests...); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		},
		"Autocommit": l.Autocommit(pool).Consume,
		"Coalesced":  rig.Coalesce(t, l, pool).Consume,
		"FailOpen":   (&ratelimit.FailOpen{Limiter: l.Autocommit(pool), Timeout: hung}).Consume,
		"weirtest":   new(weirtest.Limiter).Consume,
	}
	limit := ratelimit.MustDefine("consumed",
		ratelimit.TokenBucket{Rate: 2, Period: time.Hour, MaxReserved: ratelimit.Tokens(2)})
	other := ratelimit.MustDefine("consumedToo", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	shadow := ratelimit.MustDefine("consumedByShadow",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour}, ratelimit.Shadow())
	for name, consume := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			refused := func(what string, requests ...ratelimit.Request) {
				t.Helper()
				err := consume(ctx, requests...)
				if !errors.Is(err, ratelimit.ErrInvalid) ||
					!strings.Contains(err.Error(), "one without OrReserve or Within") {
					t.Errorf("%s: %v", what, err)
				}
			}
			refused("OrReserve", limit.For(name).OrReserve())
			refused("Within", limit.For(name).Within(time.Minute))
			refused("the second one", other.For(name), limit.For(name).OrReserve())
			refused("OnCredit OrReserve", limit.For(name).OnCredit().OrReserve())

			if err := consume(ctx, limit.For(name), other.For(name), shadow.For(name)); err != nil {
				t.Errorf("the first: %v", err)
			}
			var denied *ratelimit.DeniedError
			if err := consume(ctx, limit.For(name), other.For(name)); !errors.As(err, &denied) ||
				denied.Limit != "consumedToo" ||
				denied.Key != name || denied.RetryAfter() < 59*time.Minute {
				t.Errorf("the second: %v", err)
			}
			if err := consume(ctx, limit.For(name).Within(0), shadow.For(name)); err != nil {
				t.Errorf("now, and a shadow that would deny: %v", err)
			}
			if err := consume(ctx, limit.For(name)); !errors.Is(err, ratelimit.ErrDenied) {
				t.Errorf("the third: %v", err)
			}
			if err := consume(ctx, limit.For("")); !errors.Is(err, ratelimit.ErrInvalid) {
				t.Errorf("no key: %v", err)
			}
		})
	}
}

// Config.IsoLevel is that of InTx and of SendBatch, and InTxOptions may say another one.
func TestIsoLevelOfTheConfig(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the default level is another one there")
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("levelled", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	for _, level := range append(rig.Levels, "") {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			l := rig.Limiter(t, ratelimit.Config{IsoLevel: level})
			want := string(level)
			if want == "" {
				want = "serializable"
			}
			is := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s runs at %q, want %q", what, got, want)
				}
			}
			var got string
			show := func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, limit.For(want)); err != nil {
					return err
				}
				return tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&got)
			}
			if err := l.InTx(t.Context(), pool, show); err != nil {
				t.Fatal(err)
			}
			is("InTx", got, want)
			if err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadWrite}, show); err != nil {
				t.Fatal(err)
			}
			is("InTxOptions", got, want)
			if err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, show); err != nil {
				t.Fatal(err)
			}
			is("InTxOptions that says so", got, "repeatable read")
			queue := func(b *pgx.Batch) error {
				b.Queue(`SHOW transaction_isolation`).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
				return nil
			}
			if res, err := l.SendBatch(t.Context(), pool, queue, limit.For(want)); err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
			is("SendBatch", got, want)
		})
	}
	_, err := ratelimit.New(ratelimit.Config{IsoLevel: "snapshot"})
	if !errors.Is(err, ratelimit.ErrInvalid) || !strings.Contains(err.Error(), "Config.IsoLevel") {
		t.Errorf("an unknown level: %v", err)
	}
}
