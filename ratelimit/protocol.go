package ratelimit

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/limits/algebra"
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
	if l.sharded(calls) {
		return l.rateLimitShards(ctx, x, calls, first, nil)
	}
	looked := x.fresh() && l.expected(calls) || l.scarce(x, calls)
	for round := 1; ; round++ {
		if looked {
			res, err := l.foresee(ctx, x, calls)
			if err != nil || !res.OK {
				return res, err
			}
			if l.sharded(calls) {
				return l.rateLimitShards(ctx, x, calls, first, nil)
			}
		}
		takes := forEach(calls, l.takeOf)
		if x.single && len(takes) > 1 { // the first would be committed although the second denies
			return Result{}, errUndecided
		}
		err := x.run(ctx, takes)
		stamp(takes)
		if err != nil {
			if x.stepwise {
				l.undo(ctx, x, takes)
			}
			return Result{}, explain(ctx, err, "take", calls)
		}
		if res, ok := granted(takes, calls); ok {
			return res, nil
		}
		res, closed, err := l.denied(ctx, x, takes, calls)
		if closed {
			return l.rateLimitShards(ctx, x, calls, first, takes)
		}
		if err != nil || !res.OK {
			return res, err
		}
		if round == rounds {
			return Result{}, errUndecided
		}
		looked = false
	}
}

// errUndecided says that LOOK found enough tokens each time, and TAKE then lost them to other
// callers. It does not leave the package.
var errUndecided = errors.New(
	"ratelimit: TAKE and LOOK disagree: is the database's clock being set back?",
)

// stamp records in each call what its take left in the row. A call with such a record can be given
// back.
func stamp(takes []*statement) {
	for _, s := range takes {
		if s.found {
			b := s.balance()
			s.c.stamp(b)
		} else {
			s.c.forget()
		}
	}
}

// forget records that nothing is taken.
func (c *call) forget() {
	c.Left, c.parts = algebra.Left{}, nil
}

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
			gives = append(gives, l.giveOf(s.c, 0, s.c.atOnce() && !s.c.Credit))
		}
	}
	return gives
}

const few = 2

// granted returns the Result if all takes answered with a row.
func granted(takes []*statement, calls []call) (Result, bool) {
	var fewVerdicts [few]algebra.Verdict // room on the stack, enough for most calls
	verdicts := fewVerdicts[:0]
	if len(takes) > few {
		verdicts = make([]algebra.Verdict, 0, len(takes))
	}
	for i := range takes {
		if !takes[i].found {
			return Result{}, false
		}
		verdicts = append(verdicts, calls[i].Granted(takes[i].balance()))
	}
	res := summarize(calls, verdicts)
	res.id = newID(res.At.UnixMicro())
	return res, true
}

// denied gives back what was taken, and looks at all balances, in one trip. It decides nothing if a
// row is closed: it is of an old layout, because its limit has shards now.
func (l *Limiter) denied(
	ctx context.Context, x executor, takes []*statement, calls []call,
) (res Result, closed bool, err error) {
	trip := l.gives(takes)
	given := len(trip)
	if given > 0 {
		var cancel context.CancelFunc
		// otherwise the transaction could go on with only a part of the call taken
		ctx, cancel = grace.After(ctx)
		defer cancel()
	}
	for i := range calls {
		calls[i].forget()
		trip = append(trip, l.lookOf(&calls[i]))
	}
	if err := x.run(ctx, trip); err != nil {
		return Result{}, false, explain(ctx, err, "look at", calls)
	}
	if slices.ContainsFunc(trip[given:], (*statement).closed) {
		return Result{}, true, nil
	}
	return judge(l, trip[given:], calls), false, nil
}

// foresee is checkRateLimit for a call that is expected to be denied: it looks before the
// transaction begins, if it can.
func (l *Limiter) foresee(ctx context.Context, x executor, calls []call) (Result, error) {
	looks := forEach(calls, l.lookOf)
	did, err := x.aside(ctx, looks, true)
	switch {
	case err != nil:
		return Result{}, explain(ctx, err, "look at", calls)
	case !did || slices.ContainsFunc(looks, (*statement).closed):
		return l.checkRateLimit(ctx, x, calls)
	}
	res := judge(l, looks, calls)
	if res.OK { // the take decides anew
		return res, nil
	}
	x.doubt(func() ([]*statement, func() error) {
		again := forEach(calls, l.lookOf)
		return again, func() error {
			for i := range again {
				if again[i].balance() != looks[i].balance() {
					return notConfirmed{}
				}
			}
			return nil
		}
	})
	return res, nil
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
	if !l.sharded(calls) {
		looks := forEach(calls, l.lookOf)
		if err := x.run(ctx, looks); err != nil {
			return Result{}, explain(ctx, err, "look at", calls)
		}
		if !slices.ContainsFunc(looks, (*statement).closed) {
			return judge(l, looks, calls), nil
		}
	}
	seen, err := l.see(ctx, x, calls)
	if err != nil {
		return Result{}, err
	}
	return judge(l, seen, calls), nil
}

// decider decides calls of one limit: the answer of a look at its row, or all of its shards.
type decider interface {
	Decide(a *algebra.Ask) algebra.Verdict
}

// judge returns the Result of calls whose balances were read, and takes nothing.
func judge[D decider](l *Limiter, seen []D, calls []call) Result {
	verdicts := make([]algebra.Verdict, len(calls))
	for i := range calls {
		verdicts[i] = seen[i].Decide(&calls[i].Ask)
	}
	return l.judged(calls, verdicts)
}

// judged returns the Result of calls of which nothing is taken if one is denied, and remembers
// denials.
func (l *Limiter) judged(calls []call, verdicts []algebra.Verdict) Result {
	algebra.AllOrNone(verdicts)
	for i := range calls {
		l.noted(&calls[i], &verdicts[i])
	}
	return summarize(calls, verdicts)
}
