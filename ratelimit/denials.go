package ratelimit

import (
	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
)

// What is remembered of denials, to know when LOOK should go before TAKE. Without
// Config.RememberDenials it affects only that order: LOOK still decides on the database's rows, so
// a reset by another process is noticed at once.

// expected reports whether one of the calls is likely to be denied.
func (l *Limiter) expected(calls []call) bool {
	for i := range calls {
		if l.denials.Expected(&calls[i].Row, &calls[i].Ask) {
			return true
		}
	}
	return false
}

// scarce reports whether a call may be about to queue in vain: for a contended row that has denied
// such calls lately. Its turn in the queue comes only when all transactions before it have taken,
// worked and committed, so a look is cheap beside that. If nothing was denied lately, tokens are
// ample, and a look would only add a round trip to every grant. Takes from shards do not queue.
//
// At READ COMMITTED every take may queue: for the row itself, without a conflict that would show
// it.
//
// It is for calls that can look before their transaction begins. Within the transaction a look
// would take the snapshot, and then it is too late to queue.
func (l *Limiter) scarce(x executor, calls []call) bool {
	if !x.canLookAside(true) {
		return false
	}
	for i := range calls {
		c := &calls[i]
		if (!x.attempt.keepsSnapshot() || l.contended.Has(c.Row)) &&
			l.denials.Lately(&c.Row, &c.Ask) && !l.mayHaveShards(c) {
			return true
		}
	}
	return false
}

// noted remembers the verdict on a call, if it is a denial.
func (l *Limiter) noted(c *call, v *algebra.Verdict) {
	l.denials.Note(&c.Row, &c.Ask, v, c.watched)
}

// recall answers a call of one limit from memory, if it may. Otherwise its denial may answer the
// next ones.
func (l *Limiter) recall(calls []call) (res Result, ok bool) {
	if !l.cfg.RememberDenials {
		return Result{}, false
	}
	if len(calls) == 1 {
		if v, ok := l.denials.Answer(&calls[0].Row, &calls[0].Ask, l.cfg.Clock); ok {
			res = summarize(calls, []algebra.Verdict{v}, nil)
			res.recalled = true
			return res, true
		}
	}
	l.watch(calls)
	return Result{}, false
}

// watch allows denials of the calls to answer others.
func (l *Limiter) watch(calls []call) {
	watched := l.denials.Watch()
	for i := range calls {
		calls[i].watched = watched
	}
}

func (l *Limiter) forget(calls []call) {
	for i := range calls {
		l.denials.Forget(where.Of(calls[i].Name, calls[i].Key, alone))
	}
}

// freed forgets denials because tokens became available: at once, and in a transaction of InTx once
// more after COMMIT, as until then other calls are still denied.
func freed(x executor, forget func()) {
	forget()
	if a := x.attempt; a != nil {
		a.freed = append(a.freed, forget)
	}
}
