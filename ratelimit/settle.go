package ratelimit

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// Settle replaces what was reserved with what was used, when the work is done. The counts of the
// requests say how much of their limits and keys was used. Limits that they do not name keep what
// was reserved. It reports whether this call has settled: a reservation is settled once, and
// further calls, also concurrent ones, change nothing. Call it in the transaction that saves the
// result of the work.
//
//	settled, err := limiter.Settle(ctx, tx, r, ChatTokens.For(org).CountInt(usage.TotalTokens))
//
// Unused tokens go back to the row that they were taken from, up to its capacity; for a fixed
// window only within that window. If the work has waited for its window, other settlements since
// then count as if they had come before it, so more or less may come back. Waiting work moves up:
// see [Take.RunAt]. Tokens that were used beyond the reservation are charged, as a debt if there
// are none, even one larger than MaxReserved, and waiting work is delayed, but not that from before
// a change of the number of shards. Both use the rule that last took from the row.
//
// A reservation that nobody settles keeps what it took. So does one that is settled 30 days after
// its work could run, or later; it then counts as settled. That time is the one in the Result of
// the grant, even if pauses or settlements have delayed the work since. [SettleWithin] sets another
// time than 30 days.
//
// A request for a limit and key that are not in the reservation, or for less than 0 tokens, is
// refused with an error that matches [ErrInvalid]. OrReserve and Rule of a request do not matter.
// Other errors are those of [Limiter.RateLimit]. If the transaction rolls back, nothing was
// settled.
func (l *Limiter) Settle(
	ctx context.Context, tx pgx.Tx, r Reservation, used ...Request,
) (bool, error) {
	return l.in(tx).Settle(ctx, r, used...)
}

// Release gives back all that a reservation took, because its work will not be done. If the
// reservation was granted for later, work that waits behind it keeps its time, and the next callers
// are granted earlier. Their work may start at the same time as work that kept its time: together
// they exceed the limit by what was given back. A settlement with nothing used would move the
// waiting work up instead. For work that has begun use [Limiter.Settle] with counts of 0.
func (l *Limiter) Release(ctx context.Context, tx pgx.Tx, r Reservation) (bool, error) {
	return l.in(tx).Release(ctx, r)
}

// Renew charges reservations again, under their ids, because their time has passed without their
// work being done, and their tokens have flowed by. They go ahead of all waiting work, which is
// delayed accordingly, and keep the order in which they are given. Work that waits since before a
// change of the number of shards is not delayed. [Take.RunAt] then returns when each may run.
// MaxReserved does not matter, as there is no new work. Do not renew a reservation that was settled.
//
// The reservations are changed in place. If the transaction rolls back, the charge is undone, but
// these changes are not: in each run start with the reservations as they were read.
func (l *Limiter) Renew(ctx context.Context, tx pgx.Tx, reservations ...*Reservation) error {
	w := l.in(tx)
	if w.err != nil {
		return w.err
	}
	return l.renew(ctx, w.x, reservations)
}

func (l *Limiter) settle(
	ctx context.Context, x executor, r *Reservation, used []float64,
) (bool, error) {
	return l.once(ctx, x, r, used, func(c *change) *statement {
		switch {
		case c.used < c.Count:
			return l.giveOf(c, c.used, true)
		case c.used > c.Count:
			return l.chargeOf(&c.call, c.used-c.Count)
		}
		return nil
	})
}

func (l *Limiter) release(ctx context.Context, x executor, r *Reservation) (bool, error) {
	return l.once(ctx, x, r, make([]float64, len(r.Takes)), l.undoOf)
}

// used returns how many tokens were used of each take. Takes of the same limit and key share the
// count in proportion.
func (r *Reservation) used(requests []Request) ([]float64, error) {
	reserved, used := map[where.Place]float64{}, map[where.Place]float64{}
	for _, t := range r.Takes {
		reserved[where.Place{Name: t.Limit, Key: t.Key}] += t.Count
	}
	for _, q := range requests {
		if q.def == nil {
			return nil, errNoLimit()
		}
		if q.def.shadow {
			continue
		}
		of := where.Place{Name: q.def.name, Key: q.key}
		if _, ok := reserved[of]; !ok {
			// No "key", which package httplimit takes for the fault of a client.
			return nil, &InvalidError{Limit: q.def.name, Field: "key used",
				Value: where.Short(q.key),
				Want:  "a limit and a key that the reservation has taken from: " + r.places()}
		}
		if !(q.count >= 0) || q.count+used[of] > maxTokens {
			return nil, &InvalidError{Limit: q.def.name, Field: "count", Value: q.count,
				Want: "0 to 2^53 tokens"}
		}
		used[of] += q.count
	}
	counts := make([]float64, len(r.Takes))
	for i, t := range r.Takes {
		of := where.Place{Name: t.Limit, Key: t.Key}
		n, named := used[of]
		switch counts[i] = t.Count; {
		case named && t.Count == reserved[of]:
			// further takes, of 0 tokens, have used nothing
			counts[i], used[of], reserved[of] = n, 0, 0
		case named && reserved[of] > 0:
			counts[i] = t.Count * (n / reserved[of]) // exact, if all that was reserved was used
			// so that the last one has the rest
			used[of], reserved[of] = n-counts[i], reserved[of]-t.Count
		}
	}
	return counts, nil
}

// places lists what was taken from, for an error.
func (r *Reservation) places() string {
	var all []string
	for i, t := range r.Takes {
		if i == 3 {
			return strings.Join(all, ", ") + " and others"
		}
		all = append(all, fmt.Sprintf("%s of %q", t.Limit, where.Short(t.Key)))
	}
	return strings.Join(all, ", ")
}

// once settles a reservation, unless that was done before. It then runs the statements that of
// makes, in the order of the rows.
func (l *Limiter) once(ctx context.Context, x executor, r *Reservation, used []float64,
	of func(*change) *statement) (bool, error) {
	rows := make([]change, len(r.Takes))
	for i := range rows {
		rows[i] = change{receipt: r.Takes[i].receipt(), used: used[i]}
	}
	sortChanges(rows)
	first := l.settleOf(r)
	// so that InTx queues for the row before the transaction has a snapshot
	first.c, first.writes = &rows[0].call, true
	if err := x.run(ctx, []*statement{first}); err != nil {
		return false, explain(ctx, err, "settle", callsOf(rows))
	}
	if !first.found {
		return false, nil
	}
	// otherwise the reservation could count as settled with nothing given back or charged
	x.ends = true
	rows, err := l.excess(ctx, x, rows)
	if err != nil {
		return false, err
	}
	err = l.returns(ctx, x, "settle", rows, of)
	return err == nil, err
}

func (l *Limiter) renew(ctx context.Context, x executor, reservations []*Reservation) error {
	sums := map[where.Row]call{} // with the sum of what was taken from each
	for _, r := range reservations {
		if err := r.check(); err != nil {
			return err
		}
		for i := range r.Takes {
			add(sums, r.Takes[i].receipt().call)
		}
	}
	if len(sums) == 0 {
		return nil
	}
	rows := charges(sums)
	done, err := l.onRows(ctx, x, rows,
		func(c *change) *statement { return l.chargeOf(&c.call, c.Count) },
		func(ctx context.Context, x executor, closed []change) ([]change, error) {
			return l.moved(ctx, x, reservations, closed)
		})
	if err := l.changed(ctx, x, "charge anew", callsOf(rows), done, err); err != nil {
		return err
	}
	after, charged := map[where.Row]algebra.Balance{}, map[where.Row]float64{}
	for _, s := range done {
		after[s.c.Row] = s.balance()
		charged[s.c.Row] += s.c.Count
	}
	// by row: the debt ahead of the next reservation, negative if there were tokens
	ahead := map[where.Row]float64{}
	for at, b := range after {
		ahead[at] = -max(0, b.Value+charged[at])
	}
	for _, r := range reservations {
		for i := range r.Takes {
			t := &r.Takes[i]
			at := where.Of(t.Limit, t.Key, t.row)
			b := after[at]
			ahead[at] += t.Count
			t.left = b.Left()
			t.left.Owed = ahead[at]
		}
	}
	return nil
}

// add adds what c took from its row to what others took from it. The rule is that of the first.
func add(sums map[where.Row]call, c call) {
	if first, ok := sums[c.Row]; ok {
		first.Count += c.Count
		c = first
	}
	sums[c.Row] = c
}

// charges returns the changes that charge such sums.
func charges(sums map[where.Row]call) (rows []change) {
	for _, c := range sums {
		rows = append(rows, change{receipt: receipt{call: c}})
	}
	sortChanges(rows)
	return rows
}

// moved replaces takes from closed rows with takes from the rows that have their tokens now, and
// returns what to charge to those.
func (l *Limiter) moved(
	ctx context.Context, x executor, reservations []*Reservation, left []change,
) ([]change, error) {
	seen, err := l.see(ctx, x, callsOf(left))
	if err != nil {
		return nil, err
	}
	layouts := map[where.Row]shard.Layout{}
	for i, w := range seen {
		layouts[left[i].Row] = w.Layout
	}
	sums := map[where.Row]call{}
	for _, r := range reservations {
		var takes []Take
		for _, t := range r.Takes {
			c := change{receipt: t.receipt()}
			to, ok := layouts[c.Row]
			if !ok {
				takes = append(takes, t)
				continue
			}
			for _, n := range c.follow(to) {
				takes = append(takes, n.takeOf())
				add(sums, n.call)
			}
		}
		r.Takes = takes
	}
	return charges(sums), nil
}
