package ratelimit

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/shard"
)

// A change of layout. The rows of two layouts never meet, so it is one transaction that closes the old ones for good and
// opens the new ones with what they held. The head, which says what the layout is, is locked throughout: of two deploys the
// second finds the work done. Whoever still knows the old layout finds it closed, and looks at the head.

// Reshard spreads the balances of the requests' limits and keys over n shards, by n rows each, with every token and every debt
// kept: within the caller's transaction, for whose time all who take from them wait. More shards come by themselves, with the
// first call of a program that defines them: see [Shards]. Fewer do not, or two releases with different numbers would undo
// each other's; for fewer, deploy the smaller number first and then call this.
//
// Use a transaction of READ COMMITTED, which waits for those who hold a shard: above it, each take that comes between fails it.
// Those who wait in line keep their times. Errors are those of [Limiter.ResetRateLimit].
func (l *Limiter) Reshard(ctx context.Context, tx pgx.Tx, n int, requests ...Request) error {
	if n < 1 || n > shard.Max {
		return &InvalidError{Field: "number of shards", Value: n, Want: fmt.Sprintf("one from 1 to %d", shard.Max)}
	}
	x, calls, err := l.prepare(tx, bare(requests))
	if err != nil {
		return err
	}
	for i := range calls {
		if err := l.reshard(ctx, x, &calls[i], n, true); err != nil {
			return explain(ctx, err, "change the shards of", calls[i:])
		}
	}
	return nil
}

// reshard gives the limit of c n shards, or if it is not forced, n at least.
func (l *Limiter) reshard(ctx context.Context, x executor, c *call, n int, force bool) error {
	l.books.making(c, x.transaction())
	whole := *c
	whole.layout = max(2, n) // for the queue
	head := l.headOf(&whole)
	// The row of a limit without shards goes before all others: who takes the limit for such a one may have locked it, and
	// goes on from there to the head and to the shards.
	alone := c.of(1, 0)
	alone.count = 0
	first := l.giveOf(&alone, 0, false)
	if err := x.run(ctx, []*statement{first, head}); err != nil {
		return err
	}
	old := int(head.answer.value.Float64)
	if !head.found || old < 1 || old > shard.Max || float64(old) != head.answer.value.Float64 {
		return fmt.Errorf("the head row of the limit says that it has %v shards", head.answer.value.Float64)
	}
	if first.found && !first.closed() && old != 1 { // it was not there, and is not to be
		if err := x.run(ctx, []*statement{l.put(&alone, balance{value: math.Inf(-1), pausedUntil: open})}); err != nil {
			return err
		}
	}
	if old == n || old > n && !force {
		return nil
	}

	// What is not there becomes a row, which locks it as well, and the others are filled up to now. If all of it is such, the
	// limit stays full by any rule.
	var locks, puts []*statement
	for i := range old {
		row := c.of(old, i)
		lock := l.chargeOf(&row, 0)
		lock.args[3] = float64(full) // where there is none: more than one that was used has
		locks = append(locks, lock)
	}
	if err := x.run(ctx, locks); err != nil {
		return err
	}
	var sum balance
	used := old == 1 && !first.found
	for i, s := range locks {
		b := s.balance()
		if math.IsInf(b.value, -1) {
			b.value = full // it was not there
		}
		used = used || old > 1 && b.value < full
		b.value = min(b.value, s.c.capacity)
		if i == 0 {
			sum = b
		} else {
			sum = sum.and(b)
		}
	}
	for i := range old {
		row := c.of(old, i)
		puts = append(puts, l.put(&row, balance{value: math.Inf(-1), ts: sum.ts, pausedUntil: open}))
	}
	sum.value = min(sum.value, c.capacity)
	if !used {
		sum.value = full
	}
	for i := range n {
		row := c.of(n, i)
		b := sum
		b.value, b.moved = portion(sum.value, &row), portion(sum.moved, &row)
		puts = append(puts, l.put(&row, b))
	}
	top := *c
	top.shard, top.algebra, top.args = headRow, algebra{period: 1}, nil
	puts = append(puts, l.put(&top, balance{value: float64(n), ts: sum.ts, pausedUntil: open}))
	return x.run(ctx, puts)
}

func (l *Limiter) headOf(c *call) *statement {
	return &statement{c: c, writes: true, sql: l.sql.head, args: []any{c.name, c.key, l.now()}}
}

// mend opens shards that the head of the limit of c says there are, but are not there: full.
func (l *Limiter) mend(ctx context.Context, x executor, c *call, n int) error {
	by := x.transaction()
	l.books.making(c, by)
	whole := *c
	whole.layout = n
	head := l.headOf(&whole)
	if err := x.run(ctx, []*statement{head}); err != nil || int(head.answer.value.Float64) != n {
		return err
	}
	rows, trip := make([]call, n), make([]*statement, n)
	for i := range rows {
		rows[i] = c.of(n, i)
		trip[i] = l.chargeOf(&rows[i], 0)
	}
	if err := x.run(ctx, trip); err != nil {
		return err
	}
	var puts []*statement
	for i, s := range trip {
		if s.closed() {
			puts = append(puts, l.put(&rows[i], balance{value: full, pausedUntil: open}))
		}
	}
	return x.run(ctx, puts)
}

// headRow is the number of the row that says how many shards a limit has.
const headRow = -1
