package ratelimit

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/shard"
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
// is then taken for settled. That is the time it was told when it was granted, whatever has put it off since. [SettleWithin]
// sets another time than 30 days.
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
	return l.once(ctx, x, &r, func(c *call) *statement {
		switch n := portion(counts[c.indexes[0]], c); {
		case n < c.count:
			return l.giveOf(c, n, true)
		case n > c.count:
			return l.chargeOf(c, n-c.count)
		}
		return nil
	}, func(c *call) error {
		n := counts[c.indexes[0]]
		if n < c.count {
			return l.give(ctx, x, c, n, true)
		}
		return l.charge(ctx, x, c, n-c.count)
	})
}

// charge takes n tokens beyond those that c has, whatever that leaves.
func (l *Limiter) charge(ctx context.Context, x executor, c *call, n float64) error {
	if n <= 0 {
		return nil
	}
	beyond := *c
	beyond.count = n
	_, err := l.chargeAll(ctx, x, []call{beyond})
	return err
}

// chargeAll takes the counts of calls, whatever that leaves, and returns the balances then. Of a limit with shards all are
// locked first, and then charged as if it was reserved: or one would owe and another, from which a take would be granted
// that is not due, have tokens.
func (l *Limiter) chargeAll(ctx context.Context, x executor, calls []call) ([]balance, error) {
	of := map[place]int{}
	for i := range calls {
		of[calls[i].place()] = i
	}
	rows, err := l.over(ctx, x, calls, func(row *call) *statement {
		if row.shard == shard.Row(1, 0) {
			return l.chargeOf(row, row.count)
		}
		return l.chargeOf(row, 0)
	})
	if err != nil {
		return nil, err
	}
	after := make([]balance, len(calls))
	there := make([][]part, len(calls))
	var trip []*statement
	for k, s := range rows {
		if !s.found {
			return nil, fmt.Errorf("no row in answer for %q", s.c.key)
		}
		i, b := of[s.c.place()], s.balance()
		if s.c.shard == shard.Row(1, 0) {
			after[i] = b
		} else {
			there[i] = append(there[i], part{shard: k, count: b.value})
		}
	}
	for i, parts := range there {
		if len(parts) == 0 {
			continue
		}
		counts := map[int]float64{}
		for _, p := range level(parts, calls[i].count) {
			counts[p.shard] = p.count
		}
		for k, s := range rows {
			if of[s.c.place()] == i {
				trip = append(trip, l.chargeOf(s.c, counts[k]))
			}
		}
	}
	if len(trip) == 0 {
		return after, nil
	}
	if err := x.run(ctx, trip); err != nil {
		return nil, err
	}
	for _, s := range trip {
		if all := &after[of[s.c.place()]]; all.exists {
			*all = all.and(s.balance())
		} else {
			*all = s.balance()
		}
	}
	return after, nil
}

func (l *Limiter) release(ctx context.Context, x executor, r Reservation) (bool, error) {
	if err := r.check(); err != nil {
		return false, err
	}
	return l.once(ctx, x, &r, l.undoOf, func(c *call) error { return l.give(ctx, x, c, 0, c.atOnce()) })
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
		if q.def.shadow {
			continue
		}
		i := 0
		for i < len(r.Takes) && (r.Takes[i].Limit != q.def.name || r.Takes[i].Key != q.key) {
			i++
		}
		switch {
		case i == len(r.Takes):
			return nil, &InvalidError{Limit: q.def.name, Field: "key", Value: shorten(q.key), Want: "a limit and a key that the reservation has taken from: " + r.places()}
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

// places names what was taken from, for a message.
func (r *Reservation) places() string {
	var b strings.Builder
	for i, t := range r.Takes {
		if i == 3 {
			b.WriteString(" and others")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s of %q", t.Limit, shorten(t.Key))
	}
	return b.String()
}

// once runs the statements for the takes of a reservation, in the order of their rows, if it has not been settled before.
func (l *Limiter) once(ctx context.Context, x executor, r *Reservation, of func(*call) *statement, sharded func(*call) error) (bool, error) {
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
	if err := l.returns(ctx, x, "settle", calls, of, sharded); err != nil {
		return false, err
	}
	return true, nil
}

func (l *Limiter) renew(ctx context.Context, x executor, reservations []*Reservation) error {
	var calls []call
	of := map[place]int{}
	for _, r := range reservations {
		if err := r.check(); err != nil {
			return err
		}
		for i := range r.Takes {
			c := r.Takes[i].call()
			if n, ok := of[c.place()]; ok {
				calls[n].count += c.count
				continue
			}
			of[c.place()] = len(calls)
			calls = append(calls, c)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	sortCalls(calls)
	for i := range calls {
		of[calls[i].place()] = i
	}
	after, err := l.chargeAll(ctx, x, calls)
	if err != nil {
		return explain(ctx, err, "charge anew", calls)
	}
	ahead := make([]float64, len(calls)) // of the next reservation, less what was there
	for i := range after {
		ahead[i] = -max(0, after[i].value+calls[i].count)
	}
	for _, r := range reservations {
		for i := range r.Takes {
			t := &r.Takes[i]
			n := of[place{t.Limit, t.Key}]
			b := after[n]
			ahead[n] += t.Count
			t.since, t.owed, t.delay, t.moved, t.parts = b.since(), ahead[n], b.delay, b.moved, nil
		}
	}
	return nil
}
