package ratelimit

import (
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/internal/receipts"
)

// Foretell is [Decide] for a whole call: the Result that [Limiter.RateLimit] would return at now if
// state returned the balances, and the balances after the call, in the order of the requests. Use
// it to simulate limits; package weirtest does.
//
// A denied call takes nothing. A limit counts as one balance, however many shards it has. Nothing
// is taken from any database, so do not give back or settle the Result there.
func Foretell(now time.Time, state func(limit, key string) State, requests ...Request) (Result,
	[]State, error) {
	calls, err := resolveAll(requests)
	if err != nil {
		return Result{}, nil, err
	}
	at, states := now.UnixMicro(), make([]State, len(requests))
	leave := func(c *call, s State) {
		for _, j := range c.indexes {
			states[j] = s
		}
	}
	balances := make(map[where.Place]algebra.Balance, len(calls))
	for i := range calls {
		c := &calls[i]
		b, err := c.stored(state(c.Name, c.Key), now)
		if err != nil {
			return Result{}, nil, err
		}
		balances[c.Place] = b
		leave(c, c.state(c.At(b, at)))
	}
	res, err := beside(calls, false, func(calls []call) (Result, error) {
		verdicts := make([]algebra.Verdict, len(calls))
		for i := range calls {
			verdicts[i] = calls[i].Decide(balances[calls[i].Place], at)
		}
		if !algebra.AllOrNone(verdicts) {
			return summarize(calls, verdicts, nil), nil
		}
		all := make([]took, len(calls))
		for i := range calls {
			all[i].Left = verdicts[i].After.Left()
			leave(&calls[i], calls[i].state(verdicts[i].After))
		}
		res := summarize(calls, verdicts, all)
		res.id = newID(res.At.UnixMicro())
		return res, nil
	})
	return res, states, err
}

// Receipts is for package weirtest, which settles reservations in memory. Nothing else can use what
// it returns. It returns the errors of [Limiter.Settle] for a bad reservation or a bad request.
func (r Reservation) Receipts(used ...Request) (receipts.Reservation, error) {
	if err := r.check(); err != nil {
		return receipts.Reservation{}, err
	}
	counts, err := r.used(used)
	if err != nil {
		return receipts.Reservation{}, err
	}
	takes := make([]receipts.Take, len(r.Takes))
	for i := range takes {
		c := r.Takes[i].receipt()
		takes[i] = receipts.Take{
			Place: c.Place, Rule: c.Rule, Used: counts[i], AtOnce: c.atOnce(),
			Receipt: algebra.Receipt{Count: c.Count, Left: c.Left},
		}
	}
	return receipts.Reservation{Home: r.home(), Until: r.until(), Takes: takes}, nil
}
