package ratelimit

import (
	"errors"
	"hash/maphash"
	"maps"
	"math"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// spares are the balances in memory on which a FailOpen decides in an outage, by its share of each
// limit. A balance is full until it is taken from. The FailOpen locks them.
type spares struct {
	began time.Time
	seed  maphash.Seed
	of    map[uint64]spare // by limit and key
	swept int64
}

type spare struct {
	algebra.Balance
	full int64 // when it is full again, and can be forgotten
}

// mostSpares bounds the keys in memory, of about 100 bytes each.
const mostSpares = 100_000

var (
	errShare  = errors.New("the count is above the share of the limit that is granted from memory")
	errSpares = errors.New("too many other keys are in memory")
)

// take decides by share times each limit. It takes from all limits of the call, or from none.
func (s *spares) take(requests []Request, share float64, now time.Time) (Result, error) {
	if s.of == nil {
		*s = spares{began: now, seed: maphash.MakeSeed(), of: map[uint64]spare{}}
	}
	calls, err := resolveAll(requests)
	if err != nil {
		return Result{}, err
	}
	// Counted from began on the monotonic clock, so that setting the clock does no harm.
	at := s.began.UnixMicro() + now.Sub(s.began).Microseconds()
	res, err := beside(calls, true, func(calls []call) (Result, error) {
		return s.decide(calls, share, at)
	})
	res.spare = true
	return res, err
}

func (s *spares) decide(calls []call, share float64, at int64) (Result, error) {
	verdicts, ids := make([]algebra.Verdict, len(calls)), make([]uint64, len(calls))
	unknown := 0
	for i := range calls {
		c := &calls[i]
		// its share, without its options: it is granted now or not at all
		c.Capacity, c.Rate, c.Debt = nearlyWhole(share*c.Capacity), share*c.Rate, 0
		c.Ahead = algebra.Ahead{Leave: share * c.Leave}
		if !(c.Capacity-c.Count >= c.Leave) {
			return Result{}, errShare
		}
		ids[i] = maphash.Comparable(s.seed, c.Place)
		b, known := s.of[ids[i]]
		if !known {
			unknown++
		}
		verdicts[i] = c.Decide(b.Balance, at)
	}
	if !algebra.AllOrNone(verdicts) {
		return summarize(calls, verdicts, nil), nil
	}
	if !s.room(unknown, at) {
		return Result{}, errSpares
	}
	for i := range calls {
		c, b := &calls[i], verdicts[i].After
		s.of[ids[i]] = spare{b, c.Earliest(b.Value, b.TS, b.TS, 0, c.Capacity)}
	}
	return summarize(calls, verdicts, nil), nil
}

// room reports whether n more keys fit into memory. At most once a second it first forgets balances
// that are full again.
func (s *spares) room(n int, at int64) bool {
	if len(s.of)+n > mostSpares && at-s.swept >= time.Second.Microseconds() {
		s.swept = at
		maps.DeleteFunc(s.of, func(_ uint64, b spare) bool { return b.full <= at })
	}
	return len(s.of)+n <= mostSpares
}

// nearlyWhole makes up for rounding: 49 times 1/49 is a little less than 1, which would grant
// nothing.
func nearlyWhole(x float64) float64 {
	if n := math.Round(x); math.Abs(x-n) <= n*1e-12 {
		return n
	}
	return x
}
