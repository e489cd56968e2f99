package ratelimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
)

// decideAlone decides calls that cannot be decided in the batch, in goroutines of their own, a few
// at a time. It does not wait for them, so the lane goes on. Calls of the batch for the same rows
// are decided in their order. Those of the next batch do not wait for them, and may come first.
func (p *scheme) decideAlone() {
	c := p.c
	of := map[string][]*waiter{}
	for _, w := range p.alone {
		k := ""
		for i := range w.calls {
			k += w.calls[i].Name + "\x00" + w.calls[i].Key + "\x00"
		}
		of[k] = append(of[k], w)
	}
	for _, group := range of {
		c.running.Go(func() {
			trips := p.trips
			for _, w := range c.sum(group, &trips) {
				w.trips, w.together = w.trips+trips, 1
				wanted := func() bool { return w.state.Load() == taken && !c.ended.Load() }
				for tries := 0; tries == 0 || c.l.stuck(w.err) && w.state.Load() == taken; tries++ {
					w.err = c.single(tries, true, wanted, func(ctx context.Context, x executor) error {
						res, err := c.l.rateLimit(ctx, x.counting(&w.trips), w.calls)
						w.res = &res
						return err
					})
				}
				c.answer(w)
			}
		})
	}
}

// single runs a verb in a transaction of its own, on one of few connections. It waits only briefly
// for a row that another transaction holds. A verb that has failed before waits a while. Then such
// verbs take turns, so that held rows leave the connections to other calls. Such a try waits hardly
// at all for a row, so that the turns of others come soon. But each fourth one waits in line for a
// row that is held again and again, unless another one does.
//
// A verb of a crowd may be one of many, one for each row. They stand in a queue of their own, so
// that they do not hold up the sums of calls for limits with shards. If a verb is no longer wanted
// when its turn comes, it fails with ErrClosed.
func (c *Coalesced) single(
	tries int, ofCrowd bool, wanted func() bool, verb func(context.Context, executor) error,
) error {
	patient := tries%4 == 0
	if tries > 0 {
		time.Sleep(mostPause)
		turns := &c.inLine
		if patient = patient && turns.TryLock(); !patient {
			turns = &c.again
			turns.Lock()
		}
		defer turns.Unlock()
	}
	if ofCrowd {
		c.crowd <- struct{}{}
		defer func() { <-c.crowd }()
		patient = patient && (tries > 0 || len(c.crowd) < cap(c.crowd)) // or others wait behind it
	}
	c.singly <- struct{}{}
	defer func() { <-c.singly }()
	if !wanted() {
		return errClosedCoalesced
	}
	ctx, cancel := context.WithTimeout(context.Background(), tripTime)
	defer cancel()
	wait := inserting
	if patient || c.l.cfg.Portable {
		wait = 2 * inLine
	}
	patience := []*statement{{sql: c.l.patienceSQL(wait, tries)}} // a lock timeout for each trip
	return c.l.overPool(ctx, c.pool, true, patience, verb)
}

// sum decides calls for one limit and key, usually one with shards, together: as many at a time as
// may have their tokens. If one call for all of these is granted, all are. Otherwise it denies the
// calls that would be denied alone, and then tries half as many. If a single call loses its tokens
// to other transactions, all calls that want as many or more would lose them, too. They are denied
// with it, because each would take several trips. sum returns calls that are to be decided one by
// one, and adds to trips.
func (c *Coalesced) sum(group []*waiter, trips *int) []*waiter {
	all := group[0].calls[0]
	all.indexes = only
	for _, w := range group {
		if len(w.calls) > 1 || !w.calls[0].plain() || w.calls[0].Rule != all.Rule {
			return group
		}
	}
	answer := func(w *waiter, together int) {
		w.trips, w.together = w.trips+*trips, together
		c.answer(w)
	}
	waits := func(w *waiter) bool { return w.state.Load() == taken }
	wanted := func() bool { return !c.ended.Load() && slices.ContainsFunc(group, waits) }
	var seen []*spread.Whole
	for most, many := all.Capacity, len(group); len(group) > 1; {
		group = slices.DeleteFunc(group, func(w *waiter) bool {
			if waits(w) {
				return false
			}
			w.err = errClosedCoalesced // its caller does not see it
			c.answer(w)
			return true
		})
		if len(group) == 0 {
			break
		}
		looked := seen != nil // just before: the tokens of the first call were there
		seen = nil
		n := 0
		for all.Count = 0; n < min(many, len(group)); n++ {
			one := group[n].calls[0].Count
			if n > 0 && all.Count+one > most {
				break
			}
			all.Count += one
		}
		var res Result
		err := c.single(0, false, wanted, func(ctx context.Context, x executor) (err error) {
			res, err = c.l.rateLimit(ctx, x.counting(trips), []call{all})
			return err
		})
		switch {
		case errors.Is(err, context.DeadlineExceeded): // they would all wait as long
			for _, w := range group[n:] {
				w.err = errSilent
				answer(w, n)
			}
			group = group[:n]
			fallthrough
		case errors.Is(err, ErrOutcomeUnknown): // taking again could take twice
			for _, w := range group[:n] {
				w.err = err
				answer(w, n)
			}
			group = group[n:]
			continue
		case err != nil:
			return group
		case res.OK:
			grantAll(group[:n], res)
			for _, w := range group[:n] {
				answer(w, n)
			}
			group, many = group[n:], len(group)
			continue
		}
		err = c.single(0, false, wanted, func(ctx context.Context, x executor) (err error) {
			seen, err = c.l.see(ctx, x.counting(trips), []call{all})
			return err
		})
		if err != nil {
			return group
		}
		var others []*waiter
		for _, w := range group {
			switch w.verdicts[0] = seen[0].Decide(&w.calls[0].Ask); {
			case !w.verdicts[0].OK:
				c.l.noted(&w.calls[0], &w.verdicts[0])
				answer(w, len(group))
			case n == 1 && looked && w.calls[0].Count >= all.Count: // others have them
				w.verdicts[0] = seen[0].Lost(&w.calls[0].Ask)
				answer(w, len(group))
			default:
				others = append(others, w)
			}
		}
		group, most, many = others, seen[0].Sum(&all.Rule, seen[0].At).Value, max(1, n/2)
	}
	return group
}

// grantAll grants calls whose sum was granted with res.
func grantAll(group []*waiter, res Result) {
	all := &res.Outcomes[0]
	rest, parts := all.call.Count, slices.Clone(all.took.parts)
	for _, w := range group {
		one := &w.took[0]
		rest -= w.calls[0].Count
		one.Left = all.took.Left
		one.Owed -= rest
		if all.took.parts != nil {
			one.parts, parts = allot(parts, w.calls[0].Count)
		}
		w.verdicts[0] = algebra.Verdict{OK: true, At: res.At.UnixMicro(), After: algebra.Balance{
			Value: res.Outcomes[0].Value + rest, Delay: res.Outcomes[0].Delay.Microseconds(),
			PausedUntil: algebra.Open}}
	}
}

// allot splits n tokens off what was taken from shards, for the next caller, as if that caller had
// taken them alone: from the fullest shard that has as many, or else from several. It returns these
// and the rest.
func allot(parts []receipt, n float64) (of, rest []receipt) {
	one, sum := -1, 0.0
	had := func(k int) float64 { return parts[k].Count - parts[k].Owed }
	there := make([]spread.Part, len(parts))
	for k := range parts {
		p := &parts[k]
		there[k] = spread.Part{Shard: k, Count: had(k), Most: p.Count}
		sum += max(0, min(p.Count, had(k)))
		if p.Count >= n && n <= p.Capacity && (one < 0 || had(k) > had(one)) {
			one = k
		}
	}
	var takes []spread.Part
	if one >= 0 || len(parts) == 1 {
		takes = []spread.Part{{Shard: max(one, 0), Count: n}}
	} else if sum >= n {
		for k := range there {
			there[k].Count = max(0, min(there[k].Count, there[k].Most))
		}
		takes, _ = spread.Gather(there, n, sum*0x1p-50)
	}
	if takes == nil { // they are not there
		takes = spread.Level(there, n)
	}
	rest = slices.Clone(parts)
	for _, t := range takes {
		r := &rest[t.Shard]
		own := *r
		own.Before = 0 // the calls before it have their own
		own.Count, r.Count = t.Count, max(0, r.Count-t.Count)
		own.after.Value += r.Count
		own.Owed -= r.Count
		of = append(of, own)
	}
	rest = slices.DeleteFunc(rest, func(r receipt) bool { return r.Count == 0 })
	if len(rest) == 0 { // callers that take nothing still need a shard
		rest = slices.Clone(of[len(of)-1:])
		rest[0].Count = 0
	}
	return of, rest
}
