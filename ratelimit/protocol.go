package ratelimit

import (
	"context"
	"errors"
	"slices"
	"time"

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
				return l.takenAgain(aims, seen, calls)
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

// errUndecided says that LOOK found enough tokens each time, and TAKE then lost them to other
// callers. It does not leave the package.
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
	var fewVerdicts [few]algebra.Verdict // room on the stack, enough for most calls
	var fewTook [few]took
	verdicts, all := fewVerdicts[:0], fewTook[:0]
	if len(takes) > few {
		verdicts, all = make([]algebra.Verdict, 0, len(takes)), make([]took, 0, len(takes))
	}
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

// stillDenied returns what confirms, within a transaction, a denial that was read before BEGIN. If
// no limit of the call has shards, the balances must be the same. If they are not, the transaction
// runs again, and then reads them within itself, so it runs once more at the most. Otherwise it
// would read before BEGIN again. So the balances of such a call may have changed, if they would
// still have denied it. again says that the transaction runs again already.
func (l *Limiter) stillDenied(seen []*spread.Whole, calls []call, again bool) confirmation {
	return func() ([]*statement, func() error) {
		looks := l.looksAt(calls)
		same := !again && !slices.ContainsFunc(looks, (*statement).ofShards)
		return looks, func() error {
			denied := false
			for i, s := range looks {
				w, valid := s.saw()
				if !valid {
					return nil // the next look reports it
				}
				// a row that was closed since denies nothing: its limit has shards now
				if (same || s.closed()) && w.Rows[0] != seen[i].Rows[0] {
					return notConfirmed{}
				}
				_, ok := w.Plan(&calls[i].Ask, seen[i].At, false, nil)
				denied = denied || !ok
			}
			if !denied {
				return notConfirmed{}
			}
			return nil
		}
	}
}

// confirmation returns statements that look again at balances that were read before the transaction
// began, and what to call after them. If that returns notConfirmed, because the balances have
// changed, the transaction runs again, as after a serialization failure.
type confirmation func() (looks []*statement, holds func() error)

type notConfirmed struct{}

func (notConfirmed) Error() string {
	return "ratelimit: a balance has changed between a denial and the transaction's begin"
}
func (notConfirmed) SQLState() string { return "40001" }

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
	var fewVerdicts [few]algebra.Verdict // as in granted
	verdicts := fewVerdicts[:0]
	if len(calls) > few {
		verdicts = make([]algebra.Verdict, 0, len(calls))
	}
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
