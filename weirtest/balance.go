package weirtest

import (
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/ratelimit"
)

type account struct{ limit, key string }

func of(r ratelimit.Request) account { return account{r.Limit().Name(), r.Key()} }

// taken is a call that was granted, and how it has left its balances.
type taken struct {
	requests []ratelimit.Request
	outcomes []ratelimit.Outcome
	left     []algebra.Balance
}

// counts are how many tokens were taken from each balance.
func (t taken) counts() map[account]float64 {
	counts := make(map[account]float64)
	for _, r := range t.requests {
		counts[of(r)] += r.N()
	}
	return counts
}

// receipt is that of outcome i, which has taken n tokens.
func (t taken) receipt(i int, n float64) algebra.Receipt {
	left := t.left[i].Left()
	left.Owed = -t.outcomes[i].Value
	return algebra.Receipt{Count: n, Left: left}
}

// ruleOf is the rule that has decided.
func ruleOf(o ratelimit.Outcome) *algebra.Rule {
	a := &algebra.Rule{Capacity: o.Capacity, Rate: o.Rate, Period: o.Period.Microseconds()}
	if !o.WindowEnds.IsZero() {
		a.Windowed = true
		a.SetOrigin(o.WindowEnds.UnixMicro())
	}
	return a
}

// rowOf is a balance as a row keeps it: written at ts, by a rule.
func rowOf(s ratelimit.State, ts int64, by *algebra.Rule) algebra.Row {
	b := algebra.Balance{
		Exists: true, Value: s.Value, TS: ts, PausedUntil: algebra.Open,
		Delay: s.Delay.Microseconds(), Moved: s.Moved,
	}
	if !s.PausedUntil.IsZero() {
		b.PausedUntil = s.PausedUntil.UnixMicro()
	}
	return algebra.Row{Balance: b, By: *by}
}

// stateOf is a row as what decides takes it.
func stateOf(r algebra.Row) ratelimit.State {
	if !r.Exists {
		return ratelimit.State{}
	}
	s := ratelimit.State{
		Value: r.Value, TS: time.UnixMicro(r.TS).UTC(),
		Delay: time.Duration(r.Delay) * time.Microsecond, Moved: r.Moved,
	}
	if r.PausedUntil != algebra.Open {
		s.PausedUntil = time.UnixMicro(r.PausedUntil).UTC()
	}
	return s
}
