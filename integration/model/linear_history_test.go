package model

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Histories of concurrent callers are recorded and then laid before porcupine, which looks for an
// order of them that the algebra of one balance, ratelimit.Decide, explains: no operation may come
// before one that had ended when it began.

type verb int

const (
	taking verb = iota
	checking
	resetting
	givingBack
)

func (v verb) String() string { return [...]string{"take", "check", "reset", "give back"}[v] }

// part is what one call did with one balance, or saw of it. A call over several balances has a part
// for each.
type part struct {
	verb    verb
	balance int // its number

	// Of a take or a check: what was asked, by a request whose count is that of the whole call, and
	// what was answered.
	request ratelimit.Request
	result  ratelimit.Result
	outcome ratelimit.Outcome

	// Of a give-back.
	count float64
	start time.Time // of the window that it was taken from

	told             // how a take left the balance
	exact       bool // result.At is the very reading for this balance: it is the latest of those for several
	rig.Numbers      // of the rule
}

// told is what a take keeps for the day on which it is given back.
type told struct {
	known       bool
	owed, moved float64
}

// mostBalances is how many balances a history can be about.
const mostBalances = 5

// world is what the rows would be. A balance that was reset is like one never used, but for what
// its line has moved: full under any rule, and the clock of the reset is nowhere to be seen, as a
// take from a full balance starts anew at its own clock.
type world [mostBalances]ratelimit.State

// nearly compares times that were computed from balances.
func (p *part) nearly(a, b time.Time) bool {
	if a.IsZero() || b.IsZero() {
		return a.Equal(b)
	}
	slack := time.Microsecond + time.Duration(rig.Tolerance/p.Rate*float64(p.Period))
	return a.Sub(b).Abs() <= slack
}

// allThereWas reports whether a take has left nothing, as far as can be told: then it may have been
// granted at once, or for a moment later. Callers of several shards ask for all that one of them has.
func (p *part) allThereWas(d ratelimit.Decision) bool {
	return rig.Near(d.State.Value, 0) && rig.Near(p.outcome.Value, 0) && d.RunAt.IsZero() != p.outcome.RunAt.IsZero()
}

// after returns what the balance may be after the part: nothing, if s does not explain what it saw.
func (p *part) after(s ratelimit.State) []ratelimit.State {
	switch p.verb {
	case resetting:
		return []ratelimit.State{{Moved: s.Moved}}
	case givingBack:
		return p.given(s)
	}
	d, err := ratelimit.Decide(p.request, s, p.result.At)
	if err != nil {
		panic(err)
	}
	d.State.Moved = s.Moved // also if it was reset
	if d.OK != p.outcome.OK || !p.nearly(d.RetryAt, p.outcome.RetryAt) {
		return nil
	}
	if !p.result.OK { // nothing was taken, here or elsewhere
		idle, err := ratelimit.Decide(p.request.Count(0), s, p.result.At)
		if err != nil {
			panic(err)
		}
		d.RunAt, d.State.Value = time.Time{}, idle.State.Value
	}
	if !rig.Near(d.State.Value, p.outcome.Value) || !p.nearly(d.RunAt, p.outcome.RunAt) && !p.allThereWas(d) {
		return nil
	}
	switch {
	case p.verb == checking || !p.result.OK:
		return []ratelimit.State{s}
	case p.exact && p.result.At.Before(s.TS), p.known && (!rig.Near(p.owed, -d.State.Value) || !rig.Near(p.moved, s.Moved)):
		return nil
	}
	return []ratelimit.State{d.State}
}

// given is what giving back makes of a balance. Where a window owes, it matters in which one that
// was, and nobody was told: any is possible, but for one that is still to come when all has ended.
func (p *part) given(s ratelimit.State) []ratelimit.State {
	if s.TS.IsZero() {
		return []ratelimit.State{s}
	}
	with := func(n float64) ratelimit.State {
		after := s
		after.Value = max(s.Value, min(p.Capacity, s.Value+n))
		if p.owed <= 0 {
			after.Moved += max(0, -s.Value) - max(0, -after.Value)
		}
		return after
	}
	if !p.Windowed {
		return []ratelimit.State{with(p.count)}
	}
	var may []ratelimit.State
	for later := int(s.TS.Sub(p.start) / p.Period); ; later++ {
		n := p.count
		switch {
		case later > 0 && p.owed <= 0:
			n = 0
		case later > 0:
			n = min(n, p.owed-(s.Moved-p.moved)-p.Rate*float64(later-1))
		}
		may = append(may, with(max(0, n)))
		if n <= 0 || s.Value >= 0 || p.Period > time.Hour {
			return may
		}
	}
}

func (p *part) String() string {
	switch p.verb {
	case resetting:
		return fmt.Sprintf("%d: reset", p.balance)
	case givingBack:
		return fmt.Sprintf("%d: give %v", p.balance, p.count)
	}
	o := p.outcome
	return fmt.Sprintf("%d: %v %+v -> call %v, limit %v, value %v, at %v, run %v, retry %v",
		p.balance, p.verb, p.request,
		p.result.OK, o.OK, o.Value, p.result.At.Format("05.000000"), o.RunAt, o.RetryAt)
}

// oneBalance is the model. The input of an operation is the list of its parts, which happen at
// once.
var oneBalance = porcupine.NondeterministicModel{
	Init: func() []any { return []any{world{}} },
	Step: func(state, input, _ any) []any {
		worlds := []any{state}
		for _, p := range input.([]part) {
			var next []any
			for _, w := range worlds {
				for _, s := range p.after(w.(world)[p.balance]) {
					n := w.(world)
					n[p.balance] = s
					next = append(next, n)
				}
			}
			worlds = next
		}
		return worlds
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) (s string) {
		for _, p := range input.([]part) {
			s += p.String() + "\n"
		}
		return s
	},
}

// byBalance judges each balance by itself, where operations are about one each.
func byBalance(history []porcupine.Operation) [][]porcupine.Operation {
	parts := make([][]porcupine.Operation, mostBalances)
	for _, op := range history {
		i := op.Input.([]part)[0].balance
		parts[i] = append(parts[i], op)
	}
	return parts
}

// history is written by many callers.
type history struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add records parts that happened at once, at some instant from call to now.
func (h *history) add(client int, call int64, parts ...part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: parts, Call: call, Return: h.now()})
}

// judge looks for an order. Unknown, which is none, comes of a history that is too long to search,
// also on a slow machine.
func (h *history) judge(atOnce bool) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(h.model(atOnce), h.ops, 5*time.Minute)
}

func (h *history) model(atOnce bool) porcupine.Model {
	m := oneBalance
	if !atOnce {
		m.Partition = byBalance
	}
	return m.ToModel()
}

// mustBeExplained fails the test if no order explains the history, and draws a picture of it.
func (h *history) mustBeExplained(t testing.TB, atOnce bool) {
	t.Helper()
	verdict := h.judge(atOnce)
	if verdict == porcupine.Ok {
		return
	}
	t.Errorf("no order of the %d operations explains what they answered: %v", len(h.ops), verdict)
	model := h.model(atOnce)
	_, info := porcupine.CheckOperationsVerbose(model, h.ops, time.Minute)
	f, err := os.CreateTemp("", "weir-linear-*.html")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := porcupine.Visualize(model, info, f); err != nil {
		t.Fatal(err)
	}
	t.Logf("see %s", f.Name())
}
