package ratelimit

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/shard"
)

// A change of layout is one transaction: it closes the old rows for good, and opens new ones with
// what those held. The rows of two layouts never have the same number. The head says which layout
// is in force, and is locked throughout: of two deploys the second finds the work done. A process
// that still knows the old layout finds its rows closed, and looks at the head.

// Reshard divides the balances of the requests' limits and keys into n shards, with every token and
// every debt kept. It works within the caller's transaction, and callers that take from these
// limits wait until that ends. More shards come by themselves, with the first call of a program
// that defines them: see [Shards]. Fewer do not, because two releases with different numbers would
// undo each other's changes. For fewer, deploy the smaller number first and then call Reshard.
//
// What is reserved keeps its time. If shards are merged whose debts end at different times, the new
// shard is paused until the last of them ends, so that nothing starts too early. Its Value already
// includes what flows in until then. A [Limiter.Pause] in that time is added to this pause, and
// [Limiter.Resume] takes back only that.
//
// Use a transaction of READ COMMITTED, which waits for callers that hold a shard. Above READ
// COMMITTED, Reshard fails if another call takes from these limits in the meantime. A number that
// the rule cannot be divided into is refused with an [*InvalidError]: see [Shards]. A limit and key
// can change its number 2,047 times. Other errors are those of [Limiter.ResetRateLimit].
//
// During the change, a call in a transaction of the caller's own may deadlock with another one.
// Then it fails with 40P01, and the transaction has to run again, as after a 40001. [Limiter.InTx]
// and [Limiter.InSQLTx] do that by themselves.
func (l *Limiter) Reshard(ctx context.Context, tx pgx.Tx, n int, requests ...Request) error {
	if n < 1 || n > shard.Max {
		return &InvalidError{Field: "number of shards", Value: n,
			Want: fmt.Sprintf("one from 1 to %d", shard.Max)}
	}
	calls, err := resolveAll(bare(requests))
	if err != nil {
		return err
	}
	w := l.in(tx)
	if w.err != nil {
		return w.err
	}
	for i := range calls {
		if most := calls[i].MostShards(n); most < n {
			return &InvalidError{Limit: calls[i].Name, Field: "number of shards", Value: n,
				Want: fmt.Sprintf("at most %d: each must have a token, "+
					"and of a window as many whole ones as the others", most)}
		}
	}
	for i := range calls {
		if err := l.reshard(ctx, w.x, &calls[i], n, true); err != nil {
			return explain(ctx, err, "change the shards of", calls[i:])
		}
	}
	freed(w.x, func() { l.forget(calls) }) // merged shards may have enough for a call sooner
	return nil
}

// reshard gives the limit of c n shards; unless forced, it does nothing if there are more.
func (l *Limiter) reshard(ctx context.Context, x executor, c *call, n int, force bool) error {
	l.making(c, x)
	head := l.headOf(c)
	// The row of a limit without shards is locked before all others: a caller that knows of no
	// shards may have locked it, and goes on to the head and the shards.
	single := c.of(shard.Single, 0)
	single.Count = 0
	first := l.giveOf(&change{receipt: receipt{call: single}}, 0, false)
	if err := x.run(ctx, []*statement{first, head}); err != nil {
		return err
	}
	old, valid := shard.Numbered(head.answer.value.Float64)
	if !head.found || !valid {
		return errHead(head.answer.value.Float64)
	}
	// it did not exist, and must stay closed
	if first.found && !first.closed() && old != shard.Single {
		if err := x.run(ctx,
			[]*statement{l.close(single, algebra.Balance{PausedUntil: algebra.Open})}); err != nil {
			return err
		}
	}
	if old.Shards == n || old.Shards > n && !force {
		return nil
	}
	if old.Generation == shard.MaxGeneration {
		return fmt.Errorf("the limit has changed its shards %d times: prune it, or reset it and delete its rows",
			old.Generation)
	}
	to := shard.Layout{Shards: n, Generation: old.Generation + 1}

	// Missing rows are inserted, which also locks them. The others are refilled up to now. If no
	// row existed, the limit stays full by any rule.
	rows, locks := c.shardsOf(old), make([]*statement, old.Shards)
	for i := range rows {
		locks[i] = l.lockOf(&rows[i])
		// for a missing row: more than a used row can have
		locks[i].args[argCapacity] = float64(algebra.Full)
	}
	if err := x.run(ctx, locks); err != nil {
		return err
	}
	used := old == shard.Single && !first.found
	was := make([]algebra.Balance, len(rows))
	for i, s := range locks {
		b := s.balance()
		if b.IsClosed() {
			b.Value = algebra.Full // it did not exist
		}
		used = used || old != shard.Single && b.Value < algebra.Full
		b.Value = min(b.Value, rows[i].Capacity)
		was[i] = b
	}
	puts := make([]*statement, 0, len(rows)+n+1)
	for i, b := range was {
		puts = append(puts, l.close(rows[i], b))
	}
	for i, b := range spread.Merged(&c.Rule, was, n) {
		if !used {
			b.Value = algebra.Full
		}
		row := c.of(to, i)
		puts = append(puts, l.put(&row, b))
	}
	top := *c
	top.Shard, top.Rule, top.args = headRow, algebra.Rule{Period: 1}, nil
	puts = append(puts,
		l.put(&top, algebra.Balance{Value: to.Number(), TS: was[0].TS, PausedUntil: algebra.Open}))
	return x.change(ctx, puts)
}

// close closes a row that has balance b. Work that waits in it keeps its time, by the row's delay
// and moved. The capacity becomes the debt, so that Prune can tell how long work may wait in it.
func (l *Limiter) close(row call, b algebra.Balance) *statement {
	row.Capacity, row.args = max(0, -b.Value), nil
	b.Value = algebra.Closed
	return l.put(&row, b)
}

func errHead(number float64) error {
	return fmt.Errorf("its head row, with shard = %d, has the value %v, which is no valid layout: "+
		"delete all rows of this limit and key, and it begins full again", headRow, number)
}

func (l *Limiter) headOf(c *call) *statement {
	return &statement{c: c, writes: true, sql: l.sql.Head, args: []any{c.Name, c.Key, l.now()}}
}

// mend opens shards as full that should exist according to the head, but do not.
func (l *Limiter) mend(ctx context.Context, x executor, c *call, layout shard.Layout) error {
	l.making(c, x)
	head := l.headOf(c)
	if err := x.run(ctx, []*statement{head}); err != nil ||
		head.answer.value.Float64 != layout.Number() {
		return err
	}
	rows := c.shardsOf(layout)
	trip := forEach(rows, l.lockOf)
	if err := x.run(ctx, trip); err != nil {
		return err
	}
	var puts []*statement
	for i, s := range trip {
		if s.closed() {
			puts = append(puts,
				l.put(&rows[i], algebra.Balance{Value: algebra.Full, PausedUntil: algebra.Open}))
		}
	}
	if len(puts) == 0 { // another transaction was faster
		return nil
	}
	return x.run(ctx, puts)
}

// headRow is the number of the head: the row that says how many shards a limit has.
const headRow = -1
