package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
)

// BenchmarkTakeShard is a lone caller who takes from the first of so many candidates that no other
// transaction holds, of 32 shards, against the same from one of them by TakeOwn. All are free.
// x-own is the base's time by ours. Both choose at random, and neither asks the books.
func BenchmarkTakeShard(b *testing.B) {
	const shards = 32
	limit := MustDefine("takeShard", TokenBucket{Rate: 1e9, Period: time.Hour}, Shards(shards))
	for _, candidates := range []int{1, 4, 8} {
		b.Run(fmt.Sprint(candidates), func(b *testing.B) {
			pool := pgtest.Pool(b, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
			})
			conn, err := pool.Acquire(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(conn.Release)
			l, err := New(Config{})
			if err != nil {
				b.Fatal(err)
			}
			r := limit.Global().Count(5).OrReserve()
			for range 2 { // the first makes the shards, and the second learns of them
				if _, err := l.Autocommit(pool).RateLimit(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
			calls, err := resolveAll([]Request{r})
			if err != nil {
				b.Fatal(err)
			}
			c := &calls[0]
			layout, known := l.books.Layout(c.Place)
			if !known || layout.Shards != shards {
				b.Fatal(layout, known)
			}
			take := func(candidates int, wait bool) func(ctx context.Context) error {
				return func(ctx context.Context) error {
					a := aim{c: c, layout: layout, from: rand.Perm(shards)[:candidates], wait: wait,
						level: algebra.Closed}
					s := l.takeShard(&a) // with one candidate, TakeOwn if it does not wait
					err := l.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
						return l.transaction(tx).run(ctx, []*statement{s})
					})
					if err == nil && !s.found {
						err = errors.New("took nothing")
					}
					return err
				}
			}
			pair.Run(b, pair.Sides{Metric: "x-own", Base: take(1, false), Ours: take(candidates, true)})
		})
	}
}
