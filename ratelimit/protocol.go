package ratelimit

import (
	"context"
	"errors"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
)

// The protocol.
//
// TAKE is an upsert that takes tokens in one round trip. If it returns a row, the call is granted.
// That is right at every isolation level, because the upsert decides on the newest version of the
// row, which it has locked.
//
// No row is not yet a denial. The statement read the clock before it waited for the row, and it
// cannot report a row that it did not update. So LOOK reads the balance in a second statement,
// which at READ COMMITTED has a newer snapshot. If LOOK finds that the call would be granted now,
// TAKE is tried again: tokens have come meanwhile, or another transaction's first use of the
// balance was rolled back. Within a transaction the first TAKE has locked the row, so the second
// one decides.
//
// One statement for both, WITH take AS (...) SELECT ... UNION ALL SELECT ..., would be wrong at
// READ COMMITTED: its second half would see a snapshot from before the wait for the row.
//
// If this process has denied the same call lately, it expects another denial. Then LOOK goes first,
// so that a flood of denied calls writes nothing and locks nothing.
//
// LOOK also goes first, before BEGIN, if the call would otherwise queue for a row that has denied
// such calls lately: see scarce. The committed balance decides, as if the call had come before the
// transactions that have the row locked.
//
// A limit without shards is a limit with one. Only the first TAKE of its row is special, because
// most calls need nothing else: see rateLimit. What shards add is in sharded.go.

// rounds bounds how often TAKE and LOOK are repeated. Repetition is needed only if no lock is held
// between them, or the database's clock is set back.
const rounds = 3

// rateLimit takes from all calls, or from none.
func (l *Limiter) rateLimit(ctx context.Context, x executor, calls []call) (Result, error) {
	first := x.alone()
	if first {
		if res, ok := l.recall(calls); ok {
			return res, nil
		}
	}
	var seen []*spread.Whole
	var held holds
	var err error
	switch {
	case x.fresh() && l.expected(calls) || l.scarce(x, calls):
		seen, _, err = l.look(ctx, x, calls, nil, first, nil)
	case !l.sharded(calls):
		if x.single && len(calls) > 1 { // the first would be committed although the second denies
			return Result{}, errUndecided
		}
		takes := forEach(calls, l.takeOf)
		failed := x.run(ctx, takes)
		if failed != nil {
			if x.stepwise {
				l.undo(ctx, x, takes)
			}
			return Result{}, explain(ctx, failed, "take", calls)
		}
		if res, ok := granted(takes, calls); ok {
			return res, nil
		}
		var restarted bool
		seen, restarted, err = l.look(ctx, x, calls, takes, first, nil)
		if !restarted && !x.single {
			held.upTo(takes[len(takes)-1].c.Row)
		}
	}
	if err != nil {
		return Result{}, err
	}
	return l.decide(ctx, x, calls, first, seen, held)
}

// errUndecided says that LOOK found enough tokens each time, and TAKE then lost them to other
// callers. A call over a pool then begins a transaction.
var errUndecided = errors.New(
	"ratelimit: TAKE and LOOK disagree: is the database's clock being set back?",
)

// undo gives back what was taken for a call whose context ended between two statements, because the
// transaction may go on. If the transaction has failed, undo fails too, and changes nothing.
func (l *Limiter) undo(ctx context.Context, x executor, takes []*statement) {
	if gives := l.gives(takes); len(gives) > 0 {
		ctx, cancel := grace.After(ctx)
		defer cancel()
		_ = x.run(ctx, gives)
	}
}

// gives returns statements that give back the takes of a call that is denied. Takes on credit do
// not move the line: nobody can have begun to wait for their debt since.
func (l *Limiter) gives(takes []*statement) []*statement {
	var gives []*statement
	for _, s := range takes {
		if s.found {
			c := &change{receipt: s.c.receipt(s.balance())}
			gives = append(gives, l.giveOf(c, 0, c.atOnce() && !c.Credit))
		}
	}
	return gives
}

const few = 2

// granted returns the Result if all takes answered with a row.
func granted(takes []*statement, calls []call) (Result, bool) {
	verdicts := make([]algebra.Verdict, 0, few) // on the stack, and enough for most calls
	all := make([]took, 0, few)
	for i := range takes {
		if !takes[i].found {
			return Result{}, false
		}
		b := takes[i].balance()
		verdicts, all = append(verdicts, calls[i].Granted(b)), append(all, took{Left: b.Left()})
	}
	res := summarize(calls, verdicts, all)
	res.id = newID(res.At.UnixMicro())
	return res, true
}

// forEach returns a statement for each call.
func forEach(calls []call, of func(*call) *statement) []*statement {
	all := make([]*statement, len(calls))
	for i := range calls {
		all[i] = of(&calls[i])
	}
	return all
}

// checkRateLimit returns what rateLimit would return, and takes nothing. It writes nothing, so it
// does not add shards to a limit either.
func (l *Limiter) checkRateLimit(ctx context.Context, x executor, calls []call) (Result, error) {
	if l.cfg.RememberDenials && x.alone() {
		l.watch(calls)
	}
	seen, err := l.peek(ctx, x, calls)
	if err != nil {
		return Result{}, err
	}
	return l.judge(seen, calls), nil
}

// judge returns the Result of calls whose limits were read, and takes nothing.
func (l *Limiter) judge(seen []*spread.Whole, calls []call) Result {
	verdicts := make([]algebra.Verdict, 0, few) // as in granted
	for i := range calls {
		verdicts = append(verdicts, seen[i].Decide(&calls[i].Ask))
	}
	return l.judged(calls, verdicts)
}

// judged returns the Result of calls that are granted all or none. It remembers denials.
func (l *Limiter) judged(calls []call, verdicts []algebra.Verdict) Result {
	algebra.AllOrNone(verdicts)
	for i := range calls {
		l.noted(&calls[i], &verdicts[i])
	}
	return summarize(calls, verdicts, nil)
}

// sharded reports whether one of the calls is for a limit that should have shards, or is known to
// have some.
func (l *Limiter) sharded(calls []call) bool {
	for i := range calls {
		if l.mayHaveShards(&calls[i]) {
			return true
		}
	}
	return false
}

func (l *Limiter) mayHaveShards(c *call) bool { return c.shards > 1 || l.books.Has(c.Place) }
