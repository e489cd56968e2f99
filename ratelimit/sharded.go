package ratelimit

import (
	"context"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/shard"
)

// What the protocol does if limits have shards. TAKE goes to one shard that is known to have enough
// tokens, and that no other transaction is known to hold. If there is none, or TAKE fails, LOOK
// reads all shards, decides for the limit as a whole, and says where to take. A large reservation
// is taken from several shards, in equal parts and in one statement if it can be.
//
// A take does not wait for a shard that another take, a give-back or a charge holds, unless more
// than half of the shards have enough. So no caller waits for a row that another one may empty. It
// does wait for a transaction that has paused, reset or resharded there.
//
// A take that was denied has still locked its shard. If the transaction is not rolled back, it
// takes only from that shard and from rows that come after it in the order of locks, as two callers
// could deadlock.
//
// If a shard did not grant what LOOK had seen in it, and the next LOOK finds it unchanged, another
// transaction holds it. The call leaves it out until it changes. A call that may not wait is denied
// if the other shards do not have enough, and not tried again until that transaction has ended.

// alone is the number of the row of a limit without shards.
const alone = 0

// decide is rateLimit for calls that a TAKE of their only rows does not decide. With first, nothing
// but this call has sent anything in the transaction. seen is what LOOK has just read, or nil, and
// held what the call has locked.
func (l *Limiter) decide(
	ctx context.Context, x executor, calls []call, first bool, seen []*spread.Whole, held holds,
) (Result, error) {
	for i := range calls {
		calls[i].Most = l.books.Asked(calls[i].Place, calls[i].Count)
	}
	var aims []aim
	var restarted bool
	var err error
	if seen == nil {
		aims = make([]aim, len(calls))
		if !l.guess(x, calls, aims) {
			seen, _, err = l.look(ctx, x, calls, nil, first, nil)
		}
	}
	if err != nil {
		return Result{}, err
	}
	changes := 0
	for round := 1; ; round++ {
		if seen != nil {
			if aims != nil && haveMoved(aims, seen) { // it has lost no tokens to others
				if changes++; changes > mostChanges {
					return Result{}, explain(ctx, errMoving, "take", calls)
				}
				round = 1
			}
			if res := l.judge(seen, calls); !res.OK {
				if x.doubts() {
					x.lazy.unsure = l.stillDenied(seen, calls, x.attempt.again)
				}
				return res, nil
			}
			if aims == nil {
				aims = make([]aim, len(calls))
			}
			if round > rounds || !l.aim(x, calls, aims, seen, &held, round == rounds) {
				return l.takenAgain(ctx, aims, seen, calls)
			}
		}
		var takes []*statement
		for i := range aims {
			l.send(&aims[i])
			// so that calls made before the answer avoid these shards
			for _, s := range aims[i].sent {
				for row := range s.claims {
					l.books.Claim(row, x.session())
				}
			}
			takes = append(takes, aims[i].sent...)
		}
		if x.single && len(takes) > 1 {
			return Result{}, errUndecided
		}
		sent := time.Now()
		failed := x.run(ctx, takes)
		if slices.ContainsFunc(takes, func(s *statement) bool { return s.parts > 0 }) {
			takes = l.apart(x, aims)
		}
		l.arrive(x, takes, failed)
		switch {
		case failed == nil:
			if res, ok := l.grantedShards(aims, seen, calls); ok {
				return res, nil
			}
			for i := range seen { // unless the takes went by what was remembered
				l.lose(&aims[i], seen[i])
			}
		case !first || round == rounds || !isConflict(failed) ||
			slices.ContainsFunc(takes, func(s *statement) bool { return s.whole == nil }):
			// for the row of a limit without shards InTx queues after a conflict
			if x.stepwise {
				l.undo(ctx, x, takes)
			}
			return Result{}, explain(ctx, failed, "take", calls)
		}
		if seen, restarted, err = l.look(ctx, x, calls, takes, first, failed); err != nil {
			return Result{}, err
		}
		if !restarted && !x.single {
			held.add(aims, seen, time.Since(sent))
		}
	}
}

// mostChanges is how many changes of the number of shards a call may meet, each just before a TAKE.
const mostChanges = 10

// haveMoved reports whether a limit has other shards by now than those that were aimed at.
func haveMoved(aims []aim, seen []*spread.Whole) bool {
	for i := range aims {
		if aims[i].layout != seen[i].Layout {
			return true
		}
	}
	return false
}

// arrive records which shards the takes took from, and what they left there.
func (l *Limiter) arrive(x executor, takes []*statement, err error) {
	for _, s := range takes {
		if s.whole == nil {
			continue
		}
		if s.closed() {
			s.found = false // a closed row counts as missing
		}
		switch {
		case s.found:
			if layout, i := shard.Address(s.row); s.row != s.c.Shard {
				l.books.Disclaim(s.c.Row, x.session())
				*s.c = s.whole.take(layout, i, s.c.Count)
			}
			l.books.Took(s.c.Row, s.balance(), x.session())
			if a := x.attempt; a != nil {
				a.shards = append(a.shards, s.c.Row)
			}
		case err != nil && (isConflict(err) || isUnreachable(err)):
			l.books.Lost(s.c.Row) // the next takes try others
		case err == nil && s.lone:
			// another transaction holds it or has taken from it, so the session no longer prefers it
			l.books.Lost(s.c.Row)
		default:
			l.books.Disclaim(s.c.Row, x.session())
		}
	}
}

// grantedShards is granted for limits with shards.
func (l *Limiter) grantedShards(aims []aim, seen []*spread.Whole, calls []call) (Result, bool) {
	verdicts, all := make([]algebra.Verdict, len(aims)), make([]took, len(aims))
	for i := range aims {
		a := &aims[i]
		if slices.ContainsFunc(a.sent, func(s *statement) bool { return !s.found }) {
			return Result{}, false
		}
		c, b := a.c, a.sent[0].balance()
		if a.layout == shard.Single {
			verdicts[i], all[i].Left = c.Granted(b), b.Left()
			continue
		}
		parts := make([]receipt, 0, len(a.sent))
		for k, s := range a.sent {
			parts = append(parts, s.c.receipt(s.balance()))
			if k > 0 {
				b = b.And(s.balance())
			}
		}
		all[i] = took{b.Left(), parts}
		if known := l.books.Known(c.Place, l.cfg.Clock); known != nil {
			b.Value = known.Sum(&c.Rule, b.TS).Value
		} else if seen != nil && seen[i].Layout == a.layout {
			// the books get a new layout only after COMMIT
			b.Value = seen[i].Sum(&c.Rule, b.TS).Value - c.Count
		}
		verdicts[i] = grantedParts(parts, b)
	}
	res := summarize(calls, verdicts, all)
	res.id = l.idOf(calls, all, res.At.UnixMicro())
	return res, true
}

// takenAgain denies calls for which the last look found enough tokens: the takes have lost them to
// other callers, or the transaction may not lock their rows. Limits without shards lose nothing to
// others, as the take has locked their rows.
func (l *Limiter) takenAgain(
	ctx context.Context, aims []aim, seen []*spread.Whole, calls []call,
) (Result, error) {
	verdicts := make([]algebra.Verdict, len(calls))
	for i := range calls {
		c := &calls[i]
		if verdicts[i] = seen[i].Decide(&c.Ask); aims[i].layout != shard.Single {
			verdicts[i] = seen[i].Lost(&c.Ask)
			c.watched = 0 // there are tokens: this denial answers no other call
		}
	}
	if res := l.judged(calls, verdicts); !res.OK {
		return res, nil
	}
	return Result{}, explain(ctx, errUndecided, "take", calls)
}

// ofShards reports whether s takes from the shards of a limit, or reads all of them.
func (s *statement) ofShards() bool { return s.whole != nil || s.look != nil }

// closed reports whether the row belongs to a former layout of its limit.
func (s *statement) closed() bool {
	return s.found && s.answer.value.Valid && s.answer.value.Float64 == algebra.Closed
}
