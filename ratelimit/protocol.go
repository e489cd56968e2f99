package ratelimit

import (
	"context"
	"errors"
	"slices"
	"time"
)

// The protocol. TAKE is an upsert that grants, in one round trip; a row in answer is a grant, and right at every isolation
// level, as the upsert decides on the newest row, which it has locked. No row in answer is not yet a denial: the statement
// read the clock before it waited for the row, and it cannot report what it did not update. So LOOK reads the balance in a
// statement of its own, which at READ COMMITTED has a newer snapshot. If LOOK finds that the call would be granted (it
// waited, and the tokens have come; or another transaction's first use was rolled back), TAKE is tried again. Within a
// transaction the failed TAKE has locked the row, so the second one decides.
//
// One statement for both, WITH take AS (...) SELECT ... UNION ALL SELECT ..., is wrong at READ COMMITTED: the second half
// sees an older snapshot than the row that the first half waited for.
//
// A denial that this process has seen before is expected: then LOOK goes first, and a flood of denied callers writes nothing
// and locks nothing.

// rounds bounds the exchange of TAKE and LOOK where no lock is held between them, or the clock is set back.
const rounds = 3

// executor runs statements in order, in one round trip where the driver can, in the caller's transaction.
type executor interface {
	run(ctx context.Context, statements []*statement) error

	// fresh says that a read now sees all that has been committed, as far as is known.
	fresh() bool

	// alone says that nothing was sent in the transaction yet, nor by anybody else in it: it has no snapshot, and has
	// written nothing.
	alone() bool

	// stepwise says that the statements go one by one, so that when one fails those before it may stand.
	stepwise() bool

	// single says that each trip is a transaction of its own.
	single() bool

	// aside looks before the transaction begins, if it has not begun. A caller that is denied often has
	// nothing left to do in the transaction, and neither begins nor ends it. If exact, it does not look
	// aside in a transaction that runs again, as what it has seen may have changed once more when the
	// transaction begins. aside reports whether it has looked.
	aside(ctx context.Context, looks []*statement, exact bool) (bool, error)

	// restart rolls back a transaction in which only the call under way has sent anything, and looks in the same trip. The
	// transaction begins again with the next statement. It reports whether it has done so.
	restart(ctx context.Context, looks []*statement) (bool, error)

	// doubt has a transaction that has not begun look again by confirm when it does, if it keeps one
	// snapshot.
	doubt(confirm func() *confirmation)

	// session is a number of the connection, or 0.
	session() uint32

	// transaction is the same for what may be in one transaction, and another for all others.
	transaction() any
}

// rateLimit takes from all calls or from none.
func (l *Limiter) rateLimit(ctx context.Context, x executor, calls []call, requests int) (Result, error) {
	if l.remember && x.alone() {
		if res, ok := l.denials.answer(calls, requests, l.clock); ok {
			return res, nil
		}
		l.denials.watch(calls)
	}
	if l.books.sharded(calls) {
		return l.rateLimitShards(ctx, x, calls, requests)
	}
	looked := x.fresh() && l.denials.expected(calls)
	for round := 1; ; round++ {
		if looked {
			res, err := l.foresee(ctx, x, calls, requests)
			if err != nil || !res.OK {
				return res, err
			}
			if l.books.sharded(calls) {
				return l.rateLimitShards(ctx, x, calls, requests)
			}
		}
		takes := make([]*statement, len(calls))
		for i := range calls {
			takes[i] = l.takeOf(&calls[i])
		}
		err := x.run(ctx, takes)
		stamp(takes)
		if err != nil {
			if x.stepwise() {
				l.undo(ctx, x, takes)
			}
			return Result{}, explain(ctx, err, "take", calls)
		}
		if res, ok := granted(takes, calls, requests); ok {
			return res, nil
		}
		res, err := l.denied(ctx, x, takes, calls, requests)
		if errors.Is(err, errClosed) {
			return l.rateLimitShards(ctx, x, calls, requests)
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

// errUndecided says that TAKE lost to other callers each time that LOOK had found enough. It does not leave the package.
var errUndecided = errors.New("ratelimit: TAKE and LOOK disagree: is the database's clock being set back?")

// stamp notes when each take was granted: from there on it can be given back.
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

// forget says that nothing is taken.
func (c *call) forget() {
	c.taken, c.owed, c.delay, c.moved, c.parts = 0, 0, 0, 0, nil
}

// undo gives back what was taken of a call whose context has ended between two statements: the transaction may then go on.
// If it may not, this fails and changes nothing.
func (l *Limiter) undo(ctx context.Context, x executor, takes []*statement) {
	if gives := l.gives(takes); len(gives) > 0 {
		ctx, cancel := detached(ctx)
		defer cancel()
		_ = x.run(ctx, gives)
	}
}

// gives are what gives back takes of a call that is denied. Nobody has come since to wait for what those on credit owe.
func (l *Limiter) gives(takes []*statement) []*statement {
	var gives []*statement
	for _, s := range takes {
		if s.found {
			gives = append(gives, l.giveOf(s.c, 0, s.c.atOnce() && !s.c.credit))
		}
	}
	return gives
}

// detached is a context for what must be done although the caller's has ended.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

const few = 2

// granted is the Result of takes that all answered with a row.
func granted(takes []*statement, calls []call, requests int) (Result, bool) {
	var fewDecisions [few]Decision // most calls are of one limit: these need not be allocated
	var fewTimes [few]int64
	decisions, at := fewDecisions[:0], fewTimes[:0]
	if len(takes) > few {
		decisions, at = make([]Decision, 0, len(takes)), make([]int64, 0, len(takes))
	}
	decisions, at = decisions[:len(takes)], at[:len(takes)]
	for i := range takes {
		if !takes[i].found {
			return Result{}, false
		}
		b := takes[i].balance()
		decisions[i], at[i] = calls[i].granted(b), b.ts
	}
	res := summarize(calls, decisions, at, requests)
	res.id = newID(res.At.UnixMicro())
	return res, true
}

// denied gives back what was taken and looks at all balances, in one trip.
func (l *Limiter) denied(ctx context.Context, x executor, takes []*statement, calls []call, requests int) (Result, error) {
	trip := l.gives(takes)
	given := len(trip)
	if given > 0 {
		var cancel context.CancelFunc
		ctx, cancel = detached(ctx) // or the transaction would go on with a part of the call
		defer cancel()
	}
	for i := range calls {
		calls[i].forget()
		trip = append(trip, l.lookOf(&calls[i]))
	}
	if err := x.run(ctx, trip); err != nil {
		return Result{}, explain(ctx, err, "look at", calls)
	}
	if slices.ContainsFunc(trip[given:], (*statement).closed) {
		return Result{}, errClosed
	}
	return l.judge(trip[given:], calls, requests), nil
}

// errClosed says that a balance is closed, as its limit has got shards. It does not leave the package.
var errClosed = errors.New("ratelimit: a balance is closed, and its limit has no shards")

// foresee is checkRateLimit for a call that is expected to be denied.
func (l *Limiter) foresee(ctx context.Context, x executor, calls []call, requests int) (Result, error) {
	looks := l.looksOf(calls)
	did, err := x.aside(ctx, looks, true)
	switch {
	case err != nil:
		return Result{}, explain(ctx, err, "look at", calls)
	case !did || slices.ContainsFunc(looks, (*statement).closed):
		return l.checkRateLimit(ctx, x, calls, requests)
	}
	res := l.judge(looks, calls, requests)
	if res.OK { // the take decides anew
		return res, nil
	}
	x.doubt(func() *confirmation {
		again := l.looksOf(calls)
		return &confirmation{again, func() bool {
			for i := range again {
				if again[i].balance() != looks[i].balance() {
					return false
				}
			}
			return true
		}}
	})
	return res, nil
}

// confirmation looks again at what was looked at before the transaction began. If it has changed the transaction is to run
// again: it could not be serialized.
type confirmation struct {
	looks []*statement
	holds func() bool
}

type notConfirmed struct{}

func (notConfirmed) Error() string {
	return "ratelimit: a balance has changed between a denial and the transaction's begin"
}
func (notConfirmed) SQLState() string { return "40001" }

func (l *Limiter) looksOf(calls []call) []*statement {
	looks := make([]*statement, len(calls))
	for i := range calls {
		looks[i] = l.lookOf(&calls[i])
	}
	return looks
}

// checkRateLimit tells what rateLimit would do, and takes nothing.
func (l *Limiter) checkRateLimit(ctx context.Context, x executor, calls []call, requests int) (Result, error) {
	if l.remember && x.alone() {
		l.denials.watch(calls)
	}
	if l.books.sharded(calls) {
		return l.checkShards(ctx, x, calls, requests)
	}
	looks := l.looksOf(calls)
	if err := x.run(ctx, looks); err != nil {
		return Result{}, explain(ctx, err, "look at", calls)
	}
	if slices.ContainsFunc(looks, (*statement).closed) {
		return l.checkShards(ctx, x, calls, requests)
	}
	return l.judge(looks, calls, requests), nil
}

func (l *Limiter) judge(looks []*statement, calls []call, requests int) Result {
	decisions, at := make([]Decision, len(looks)), make([]int64, len(looks))
	for i := range looks {
		at[i] = looks[i].answer.at.UnixMicro()
		decisions[i] = calls[i].decide(looks[i].balance(), at[i])
		l.denials.note(&calls[i], &decisions[i], at[i])
	}
	if slices.ContainsFunc(decisions, func(d Decision) bool { return !d.OK }) {
		for i := range decisions { // none is taken from, so each keeps its balance
			decisions[i].State = calls[i].state(calls[i].at(looks[i].balance(), at[i]))
			decisions[i].RunAt, decisions[i].PacedAt = time.Time{}, time.Time{}
		}
	}
	return summarize(calls, decisions, at, requests)
}
