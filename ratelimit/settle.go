package ratelimit

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Settle replaces what was reserved by what was used, once the work is done: the requests say, by their counts, how much of
// their limits and keys that was. What of the reservation they do not name was used as reserved. It reports whether it was
// this call that settled: a reservation is settled once, however often, and by however many at the same time, that is tried,
// and the others change nothing. Call it in the transaction that records what the work has brought.
//
//	settled, err := limiter.Settle(ctx, tx, reservation, ChatTokens.For(org).Count(usage.TotalTokens))
//
// What was not used goes back, to the row that it was taken from and never above its capacity; of a fixed window it goes
// back only in that window. Those who wait in line come earlier by it: [Take.RunAt] tells. What was used beyond the
// reservation is charged, as a debt if there is no more, even one larger than MaxReserved; those who wait come later by that.
// In both the rule is that by which the row was taken from last.
//
// A reservation that nobody settles keeps what it took. So does one that is settled 30 days after it might run, or later: it
// is then taken for settled.
//
// A request for a limit and key that the reservation has not, or for less than 0 tokens, is refused with an error that
// matches [ErrInvalid]; OrReserve and Rule of a request do not matter. Other errors are as those of [Limiter.RateLimit]. If
// the transaction rolls back, nothing was settled.
func (l *Limiter) Settle(ctx context.Context, tx pgx.Tx, r Reservation, used ...Request) (bool, error) {
	x, err := l.transaction(tx)
	if err != nil {
		return false, err
	}
	return l.settle(ctx, x, r, used)
}

// Release gives back all that a reservation took, as its work will not be done: a settlement with nothing used. But those who
// wait in line keep their times, if it was granted ahead of time itself: what came before it was not theirs. The next to come
// are granted earlier. For work that was begun use [Limiter.Settle], with counts of 0.
func (l *Limiter) Release(ctx context.Context, tx pgx.Tx, r Reservation) (bool, error) {
	x, err := l.transaction(tx)
	if err != nil {
		return false, err
	}
	return l.release(ctx, x, r)
}

// Renew charges reservations anew, under their ids, as their time has passed without their work being done: what they took
// has flowed by. They come ahead of all who wait, who are put off by as much, and in the order given; [Take.RunAt] then
// tells when. MaxReserved does not matter, as nobody new is let in. A reservation that was settled must not be renewed.
//
// The reservations are changed in place, also if the transaction then rolls back, with which the charge is undone: use what
// was read again in each transaction.
func (l *Limiter) Renew(ctx context.Context, tx pgx.Tx, reservations ...*Reservation) error {
	x, err := l.transaction(tx)
	if err != nil {
		return err
	}
	return l.renew(ctx, x, reservations)
}

func (l *Limiter) settle(ctx context.Context, x executor, r Reservation, used []Request) (bool, error) {
	if err := r.check(); err != nil {
		return false, err
	}
	counts, err := r.used(used)
	if err != nil {
		return false, err
	}
	return l.once(ctx, x, &r, func(i int, c *call) *statement {
		switch n := counts[i]; {
		case n < c.count:
			return l.giveOf(c, n, true)
		case n > c.count:
			return l.chargeOf(c, n-c.count)
		}
		return nil
	})
}

func (l *Limiter) release(ctx context.Context, x executor, r Reservation) (bool, error) {
	if err := r.check(); err != nil {
		return false, err
	}
	return l.once(ctx, x, &r, func(_ int, c *call) *statement { return l.undoOf(c) })
}

// used are the true counts of the takes.
func (r *Reservation) used(requests []Request) ([]float64, error) {
	counts := make([]float64, len(r.Takes))
	for i := range counts {
		counts[i] = -1
	}
	for _, q := range requests {
		if q.def == nil {
			return nil, errNoLimit()
		}
		i := 0
		for i < len(r.Takes) && (r.Takes[i].Limit != q.def.name || r.Takes[i].Key != q.key) {
			i++
		}
		switch {
		case i == len(r.Takes):
			return nil, &InvalidError{Limit: q.def.name, Field: "key", Value: shorten(q.key), Want: "a limit and a key that the reservation has taken from"}
		case !(q.count >= 0) || q.count+max(0, counts[i]) > maxTokens:
			return nil, &InvalidError{Limit: q.def.name, Field: "count", Value: q.count, Want: "0 to 2^53 tokens"}
		}
		counts[i] = max(0, counts[i]) + q.count
	}
	for i := range counts {
		if counts[i] < 0 {
			counts[i] = r.Takes[i].Count
		}
	}
	return counts, nil
}

// once runs the statements for the takes of a reservation, in the order of their rows, if it has not been settled before.
func (l *Limiter) once(ctx context.Context, x executor, r *Reservation, of func(int, *call) *statement) (bool, error) {
	calls := make([]call, len(r.Takes))
	for i := range calls {
		calls[i] = r.Takes[i].call()
		calls[i].indexes = []int{i}
	}
	sortCalls(calls)
	first := l.settleOf(r)
	first.c, first.writes = &calls[0], true // or nobody would queue for the row before the snapshot is taken
	if err := x.run(ctx, []*statement{first}); err != nil {
		return false, explain(ctx, err, "settle", calls)
	}
	if !first.found {
		return false, nil
	}
	var statements []*statement
	for i := range calls {
		if s := of(calls[i].indexes[0], &calls[i]); s != nil {
			statements = append(statements, s)
		}
	}
	if len(statements) == 0 {
		return true, nil
	}
	if err := x.run(ctx, statements); err != nil {
		return false, explain(ctx, err, "settle", calls)
	}
	l.denials.forget(calls)
	return true, nil
}

func (l *Limiter) renew(ctx context.Context, x executor, reservations []*Reservation) error {
	var calls []call
	of := map[row]int{}
	for _, r := range reservations {
		if err := r.check(); err != nil {
			return err
		}
		for i := range r.Takes {
			c := r.Takes[i].call()
			if n, ok := of[c.row()]; ok {
				calls[n].count += c.count
				continue
			}
			of[c.row()] = len(calls)
			calls = append(calls, c)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	sortCalls(calls)
	statements := make([]*statement, len(calls))
	for i := range calls {
		statements[i] = l.chargeOf(&calls[i], calls[i].count)
		of[calls[i].row()] = i
	}
	if err := x.run(ctx, statements); err != nil {
		return explain(ctx, err, "charge anew", calls)
	}
	ahead := make([]float64, len(calls)) // of the next reservation, less what was there
	for i, s := range statements {
		if !s.found {
			return explain(ctx, fmt.Errorf("no row in answer for %q", calls[i].key), "charge anew", calls)
		}
		ahead[i] = -max(0, s.value.Float64+calls[i].count)
	}
	for _, r := range reservations {
		for i := range r.Takes {
			t := &r.Takes[i]
			n := of[row{t.Limit, t.Key, t.shard}]
			b := statements[n].balance()
			ahead[n] += t.Count
			t.since, t.owed, t.delay, t.moved = b.since(), ahead[n], b.delay, b.moved
		}
	}
	return nil
}
