package ratelimit

import (
	"errors"
	"slices"

	"github.com/weir-go/weir/internal/limits/where"
)

// shadowed is appended to the name of a [Shadow], so that it has its own rows.
const shadowed = where.Shadowed

// Shadow makes a limit that decides, counts and reports, but never denies, to see what a limit
// would do before you enforce it. Use it in a call together with limits that are enforced, or
// alone. Its [Outcome] says what it would have answered, with Shadow set. It does not affect
// Result.OK, RunAt and RetryAt.
//
// It takes from its own rows: its name is the given one plus " (shadow)", so the enforced limit may
// have the same name and today's numbers. Each shadow costs a round trip of its own. It decides
// only calls that the enforced limits grant: for other calls its Outcome has only Limit, Key and
// OK. If it would deny a call, it takes nothing, and a count that it could never grant is no error.
// GiveBack also gives back to it, but it is in no [Reservation], so it is not settled and delays no
// work. It cannot be leased.
//
// It costs what a limit costs: in a transaction its row is locked too, and an error of its
// statements is an error of the call. In a [Coalesced] it is not, because the enforced limits are
// committed before the shadow decides.
func Shadow() Option { return func(d *definition) { d.shadow = true } }

// apart separates the calls of enforced limits from those of shadows, which come last.
func apart(calls []call) (enforced, shadows []call) {
	i := slices.IndexFunc(calls, func(c call) bool { return c.shadow })
	if i < 0 {
		return calls, nil
	}
	return calls[:i:i], calls[i:]
}

// enforced returns rows without those of shadows, which come last.
func enforced(rows []change) []change {
	if i := slices.IndexFunc(rows, func(r change) bool { return r.shadow }); i >= 0 {
		return rows[:i:i]
	}
	return rows
}

// beside decides calls with decide: the enforced ones together, and then each shadow by itself.
// With harmless, an error of a shadow is dropped instead of failing the call.
func beside(calls []call, harmless bool, decide func([]call) (Result, error)) (Result, error) {
	enforced, shadows := apart(calls)
	if len(shadows) == 0 {
		return decide(calls)
	}
	res := Result{OK: true}
	if len(enforced) > 0 {
		var err error
		if res, err = decide(enforced); err != nil {
			return Result{}, err
		}
	}
	res.grow(requestsOf(calls))
	for i := range shadows {
		c := &shadows[i]
		o := Outcome{Limit: c.Name, Key: c.Key, OK: !c.never, Shadow: true}
		if res.OK && !c.never {
			r, err := decide(shadows[i : i+1])
			if err != nil && !harmless {
				return Result{}, err
			}
			if err == nil {
				o = r.Outcomes[c.indexes[0]]
			}
			if len(enforced) == 0 && r.At.After(res.At) {
				res.At, res.id, res.recalled = r.At, r.id, r.recalled
			}
		}
		res.put(c, o)
	}
	return res, nil
}

// inShadow drops the error that a count can never be granted, if the limit is a shadow: the shadow
// then just denies.
func (c *call) inShadow(err error) error {
	if !c.shadow {
		return err
	}
	var invalid *InvalidError
	if errors.As(err, &invalid) && invalid.never {
		c.never = true
		return nil
	}
	return err
}
