package model

import (
	"strings"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func (a *ask) least() float64 {
	if a.reserve {
		return -a.law.reserved
	}
	return a.leave
}

// own is what it need not wait for.
func (a *ask) own() float64 {
	if a.credit {
		return a.n
	}
	return 0
}

// runs is when the work may run of a take that left e.
func (a *ask) runs(e entry) int64 {
	if e.value += a.own(); e.value < 0 {
		return a.law.since(e, e.since(), 0, 0)
	}
	return e.since()
}

// grants tells whether e, which is of now, grants it.
func (a *ask) grants(e entry) (after entry, ok bool) {
	now := !a.reserve || a.bounded && a.within == 0 // or never
	if now && e.until != 0 {
		return e, false
	}
	e.value -= a.n
	if now {
		return e, e.value+a.own() >= a.leave
	}
	return e, e.value >= a.least()-a.own() && (!a.bounded || a.runs(e)-e.ts <= a.within)
}

// never tells whether it is refused as no balance would grant it, or none of a window at some of
// its times.
func (a *ask) never() error {
	left := a.law.capacity - a.n
	now := !a.reserve || a.bounded && a.within == 0
	switch full := (entry{value: left}); {
	case now && left < a.leave, !now && left < a.least():
		return ratelimit.ErrNeverGranted
	case now || !a.bounded || a.credit || left >= 0:
		return nil
	case a.law.windowed && left+float64(a.law.rate*float64(a.within/a.law.period)) < 0:
		return ratelimit.ErrInvalid
	case !a.law.windowed && a.runs(full) > a.within:
		return ratelimit.ErrNeverGranted
	}
	return nil
}

// drawAhead draws how far ahead of its tokens a request may be granted. A rounding may decide
// between two odd windows.
func (m *machine) drawAhead(t *rapid.T, l machineLimit, a *ask) {
	ways := []string{"now", "now", "now", "leaving", "reserved", "reserved", "on credit",
		"reserved on credit", "within", "within on credit"}
	if l.odd && a.law.windowed {
		ways = ways[:len(ways)-2]
	}
	way := rapid.SampledFrom(ways).Draw(t, "ahead")
	m.n[way]++
	if a.credit = strings.HasSuffix(way, "on credit"); a.credit {
		a.request = a.request.OnCredit()
	}
	switch a.reserve = way != "now" && way != "leaving"; {
	case way == "leaving":
		a.leave = rapid.SampledFrom([]float64{0.5, 1, 3, max(0.5, a.law.capacity/2)}).Draw(t, "leave")
		a.request = a.request.Leave(a.leave)
	case strings.HasPrefix(way, "within"):
		p := a.law.period
		a.bounded, a.within = true,
			rapid.SampledFrom([]int64{0, 1, p / 7, p / 2, p, 5 * p / 2, 20 * p}).Draw(t, "within")
		a.request = a.request.Within(rig.Micros(a.within))
	case strings.HasPrefix(way, "reserved"):
		a.request = a.request.OrReserve()
	case way == "on credit":
		a.bounded = true // by 0
	}
}
