package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// A batch is several calls that are decided as one: all of them are granted, or none. Their
// requests are merged like those of one call, so each row is taken from once for all calls. Then
// what was taken is split. The last call left what the row has now; each call before it left that
// plus what the later calls took.

// RateLimitMany decides several calls at once: all of them are granted, or none. If they are, each
// gets the Result that it would have had from [Limiter.RateLimit] if the calls had been made one
// after the other, in this order and with no other caller in between. The first calls may then run
// at once and the later ones wait. Each Result has its own [Reservation].
//
// The number of round trips does not depend on the number of calls: it is that of one call for all
// of the batch's limits and keys. As in other calls, each limit and key of a [Shadow] costs a round
// trip of its own.
//
// all is the decision over the whole batch. If it is a denial, nothing was taken, each is nil, and
// all names the limit and key whose tokens come last. Otherwise its RunAt is when the last call may
// run, and its Outcomes, one for each request, have the balances after the whole batch. It is for
// reading only: give back and settle the Results in each.
//
// Requests of different calls for the same limit and key must agree as those of one call must: the
// same Rule, OrReserve in all or in none, and likewise Within, OnCredit and Leave. What they ask
// for together must be something that the limit can grant. Otherwise the batch is refused with an
// error that matches [ErrInvalid], as is an empty batch, or a call without requests. A [Shadow]
// decides the batch as a whole: if it would not grant all of it, it takes nothing.
func (l *Limiter) RateLimitMany(
	ctx context.Context, tx pgx.Tx, calls [][]Request,
) (all Result, each []Result, err error) {
	requests, of, err := flatten(calls)
	if err != nil {
		return Result{}, nil, err
	}
	o := l.observe(ctx, requests)
	merged, err := merge(requests, of)
	if err == nil {
		all, err = l.in(tx).take(ctx, o, merged)
	}
	if all, err = o.told(all, err); err != nil {
		return Result{}, nil, err
	}
	if all.OK {
		each = all.split(requests, of)
	}
	return all.readOnly(), each, nil
}

// GiveBackMany is [Limiter.GiveBack] for several Results, of [Limiter.RateLimitMany] say, in one
// round trip. If a limit's number of shards has changed since, it takes two more.
func (l *Limiter) GiveBackMany(ctx context.Context, tx pgx.Tx, results []Result) error {
	w := l.in(tx)
	if w.err != nil {
		return w.err
	}
	var rows []change
	for _, r := range results {
		taken, err := r.taken()
		if err != nil {
			return err
		}
		rows = append(rows, taken...)
	}
	if len(rows) == 0 {
		return nil
	}
	return l.giveBack(ctx, w.x, joined(rows))
}

// flatten returns the requests of a batch, and for each the number of its call.
func flatten(calls [][]Request) (requests []Request, of []int, err error) {
	if len(calls) == 0 {
		return nil, nil, &InvalidError{Field: "calls", Value: plain("none"), Want: "at least one"}
	}
	for i, some := range calls {
		if len(some) == 0 {
			return nil, nil, &InvalidError{Field: fmt.Sprintf("calls[%d]", i),
				Value: plain("without requests"), Want: "at least one request"}
		}
		for _, r := range some {
			requests, of = append(requests, r), append(of, i)
		}
	}
	return requests, of, nil
}

// readOnly returns r without what settling and giving back need: the Results of the calls have
// that. A denial has taken nothing, and Err needs its calls.
func (r Result) readOnly() Result {
	if !r.OK {
		return r
	}
	outcomes := slices.Clone(r.Outcomes)
	for i := range outcomes {
		outcomes[i].call, outcomes[i].took = nil, took{}
	}
	r.Outcomes, r.id = outcomes, [16]byte{}
	return r
}

// split returns the Results of the calls of a granted batch. The first calls get the tokens that a
// row had, and the last ones owe what it owes now. The counts of the calls, and what they took from
// each shard, add up to what was taken.
func (r Result) split(requests []Request, of []int) []Result {
	each := make([]Result, of[len(of)-1]+1)
	first := make([]int, len(each)) // the index of the first request of each
	for i, k := range of {
		each[k].Outcomes = append(each[k].Outcomes, Outcome{})
		if i > 0 && of[i-1] != k {
			first[k] = i
		}
	}
	for k := range each {
		each[k].OK, each[k].At, each[k].id = true, r.At, newID(r.At.UnixMicro())
	}
	var rows []*Outcome
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.call == nil || o.took.Since == 0 { // a shadow that took nothing
			each[of[i]].Outcomes[i-first[of[i]]] = *o
		} else if o.call.indexes[0] == i {
			rows = append(rows, o)
		}
	}
	slices.SortFunc(rows, func(a, b *Outcome) int { return a.call.Compare(&b.call.Row) })
	for _, o := range rows {
		o.share(requests, of, func(own *call, met Outcome) {
			res := &each[of[own.indexes[0]]]
			for n, i := range own.indexes {
				own.indexes[n] = i - first[of[i]]
				res.Outcomes[own.indexes[n]] = met
			}
			if !met.Shadow && met.RunAt.After(res.RunAt) {
				res.RunAt, res.Limit, res.Key = met.RunAt, met.Limit, met.Key
			}
		})
	}
	return each
}

// share splits what a batch took from one row: it calls yield for each call in order, with what
// that call took and its Outcome. The indexes are still those of the batch's requests.
func (o *Outcome) share(requests []Request, of []int, yield func(own *call, met Outcome)) {
	all := o.call
	var shares []call
	for n, i := range all.indexes {
		if n == 0 || of[i] != of[all.indexes[n-1]] {
			own := *all
			own.Count, own.Before, own.indexes = 0, 0, nil
			shares = append(shares, own)
		}
		own := &shares[len(shares)-1]
		own.Count += requests[i].count
		own.indexes = append(own.indexes, i)
	}
	after := make([]float64, len(shares)) // what the calls after each took
	for k := len(shares) - 1; k > 0; k-- {
		after[k-1] = after[k] + shares[k].Count
	}
	rest := slices.Clone(o.took.parts)
	for k := range shares {
		own, met := &shares[k], *o
		met.took.Owed -= after[k]
		b := algebra.Balance{Exists: true, Value: o.Value + after[k], TS: o.took.Since,
			PausedUntil: o.paused, Delay: o.took.Delay, Moved: o.took.Moved}
		v := own.Granted(b)
		if o.took.parts != nil {
			met.took.parts, rest = allot(rest, own.Count)
			v = grantedParts(met.took.parts, b)
		}
		met.Value, met.call = b.Value, own
		met.RunAt, met.PacedAt, _ = times(&v)
		yield(own, met)
	}
}

// joined sorts takes by row, and joins those that can be given back as one: they took from the same
// row at the same time, one directly after the other. For a token bucket without OnCredit their
// order does not matter.
func joined(takes []change) []change {
	slices.SortStableFunc(takes, func(a, b change) int {
		return cmp.Or(a.Compare(&b.Row), cmp.Compare(a.Owed, b.Owed))
	})
	join := takes[:1]
	for i := range takes[1:] {
		c := takes[1+i]
		last := &join[len(join)-1]
		if !last.precedes(&c.receipt) {
			join = append(join, c)
			continue
		}
		last.Count += c.Count
		last.Owed = c.Owed
	}
	return join
}

// precedes reports whether c and next, a later take from the same row, can be given back as one.
func (c *receipt) precedes(next *receipt) bool {
	switch {
	case c.Compare(&next.Row) != 0 || c.Rule != next.Rule,
		c.Credit != next.Credit || c.atOnce() != next.atOnce(),
		c.Since != next.Since || c.Delay != next.Delay || c.Moved != next.Moved:
		return false
	case !c.Windowed && !c.Credit:
		return true
	}
	gap := next.Owed - next.Count - c.Owed
	return math.Abs(gap) <= (math.Abs(next.Owed)+next.Count)*algebra.Smallest
}
