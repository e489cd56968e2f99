package faults

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// kept is a small daybook in which all is well: a job that was worked at once, one whose first
// worker was killed after the call, one that pays once and whose first worker was killed, and one
// that was cancelled.
func kept() (*daybook, *heard) {
	calls, tokens := account{"budgetCalls", "k"}, account{"budgetTokens", ""}
	d := &daybook{
		asks: []asked{{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}},
		jobs: []worked{{1, "a", "completed", 1}, {2, "b", "completed", 2},
			{3, "c", "completed", 2}, {4, "d", "cancelled", 0}},
		intents: []intent{{1, 1, "a1"}, {2, 1, "b1"}, {2, 2, "b2"}, {3, 1, "c1"}, {3, 2, "c1"}},
		reports: []report{{21, intent{1, 1, "a1"}, 60}, {22, intent{2, 2, "b2"}, 150},
			{23, intent{3, 2, "c1"}, 100}},
		settlements: []settlement{{21, "a1"}, {22, "b2"}, {23, "c1"}, {24, "d1"}},
		balances:    map[account]float64{calls: 400 - 4, tokens: 1e6 - 410},
	}
	for i, c := range []charge{
		{xact: 11, job: 1, reservation: "a1"}, {xact: 12, job: 2, reservation: "b1"}, {xact: 13, job: 3, reservation: "c1"},
		{xact: 14, job: 4, reservation: "d1"}, {job: 2, reservation: "b2"},
	} {
		for _, of := range []take{{calls, 1}, {tokens, 100}} {
			c.take, c.since = of, time.Unix(int64(i), 0)
			d.charges = append(d.charges, c)
			d.movements = append(d.movements, movement{int64(11 + i), take{of.Account, -of.Tokens}})
		}
	}
	d.movements = append(d.movements, movement{21, take{tokens, 40}}, movement{22, take{tokens, -50}},
		movement{24, take{tokens, 100}}, movement{24, take{calls, 1}})
	h := &heard{
		records: map[string]*record{"a": {class: granted}, "b": {class: unknown},
			"c": {class: granted}, "d": {class: granted}, "e": {class: away}},
		given:   map[string]callArgs{},
		cancels: map[string]bool{"d": true},
		told:    map[string]bool{"a1": true},
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		h.given[id] = callArgs{ID: id, Key: "k", Estimate: 100, Once: id == "c"}
	}
	for _, a := range []struct {
		intent
		used float64
	}{{d.intents[0], 60}, {d.intents[1], 90}, {d.intents[2], 150}, {d.intents[3], 10}, {d.intents[4], 100}} {
		h.answers = append(h.answers, answer{
			call: call{Job: a.job, Attempt: a.attempt, Reservation: a.reservation}, Used: a.used,
		})
	}
	return d, h
}

func TestTheAuditOfSettlementsFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	v := inspect(kept())
	if len(v.violations) > 0 || v.settled != 3 || v.held != 1 || v.released != 1 || v.calls != 5 ||
		v.charged != 505 || v.used != 313 ||
		v.kept != 101 || v.returned != 101 {
		t.Fatalf("where all is well: %+v", v)
	}
	d, h := kept() // and a worker was killed when it had paid, and had not said so
	for _, of := range []take{{account{"budgetCalls", "k"}, 1}, {account{"budgetTokens", ""}, 100}} {
		d.movements = append(d.movements, movement{99, take{of.Account, -of.Tokens}})
		d.balances[of.Account] -= of.Tokens
	}
	if v := inspect(d, h); v.says("1 calls and 100 tokens were charged later") != 1 {
		t.Errorf("where nobody was killed: %q", v.violations)
	}
	h.unheard = 1
	if v := inspect(d, h); len(v.violations) > 0 || v.lost != 1 {
		t.Errorf("where a payment is lost: %+v", v)
	}
	tokens := account{"budgetTokens", ""}
	for name, c := range map[string]struct {
		spoil func(d *daybook, h *heard)
		want  string
	}{
		"Minted":         {func(d *daybook, _ *heard) { d.balances[tokens] += 1e-5 }, "tokens are gone, the reservations say 410"},
		"GoneForNothing": {func(d *daybook, _ *heard) { d.balances[tokens] -= 1e-5 }, "tokens are gone, the reservations say 410"},
		"BalanceLost":    {func(d *daybook, _ *heard) { delete(d.balances, tokens) }, "there is no balance"},
		"WrongInOne":     {func(d *daybook, _ *heard) { d.movements[1].Tokens-- }, "transaction 11: 101 tokens went"},
		"NotCharged":     {func(d *daybook, _ *heard) { d.movements = d.movements[1:] }, "transaction 11: 0 tokens went"},
		"ChargedForNobody": {func(d *daybook, _ *heard) {
			d.movements = append(d.movements, movement{99, take{tokens, -1}})
		}, "no reservation says why"},
		"ChargedForNobodyKilled": {func(d *daybook, h *heard) {
			h.unheard = 9
			d.movements = append(d.movements, movement{99, take{tokens, -1}})
		}, "0 calls and 1 tokens were charged later"},
		"CameBack": {func(d *daybook, _ *heard) { d.movements = append(d.movements, movement{99, take{tokens, 1}}) }, "1 tokens came back"},
		"PaidAnewForFree": {func(d *daybook, _ *heard) {
			d.movements = slices.DeleteFunc(d.movements, func(m movement) bool { return m.xact == 15 })
		}, "and they are there"},
		"ChargedTwice": {func(d *daybook, _ *heard) {
			for i := range 2 {
				c := d.charges[i]
				c.since, c.xact = time.Unix(9, 0), 99
				d.charges = append(d.charges, c)
			}
		}, "job 1 has paid 2 times for its reservation a1"},
		"PaidForNothing": {func(d *daybook, _ *heard) { d.jobs[1].attempts = 1 }, "job 2 has paid 2 times, for 1 attempts"},
		"PaidAgain": {func(_ *daybook, h *heard) {
			h.given["b"] = callArgs{Key: "k", Estimate: 100, Once: true}
		}, "job 2 has paid 2 times, and was to pay once"},
		"CalledForFree": {func(_ *daybook, h *heard) {
			h.answers[2].Reservation = "b1"
		}, "job 2 called 2 times with what it has paid once, b1"},
		"CalledUnpaid": {func(_ *daybook, h *heard) {
			h.answers[0].Reservation = "x"
		}, "reservation x was called with, and never charged"},
		"CalledTwice": {func(_ *daybook, h *heard) {
			h.answers = append(h.answers, h.answers[0])
		}, "job 1 called 2 times in its attempt 1"},
		"NoIntent":    {func(d *daybook, _ *heard) { d.intents = d.intents[1:] }, "job 1 called in its attempt 1, and 0 times"},
		"OtherTokens": {func(_ *daybook, h *heard) { h.given["a"] = callArgs{Key: "k", Estimate: 99} }, "job 1 has paid 100 of"},
		"OfTwoJobs":   {func(d *daybook, _ *heard) { d.charges[0].job = 2 }, "is of job"},
		"SettledTwice": {func(d *daybook, _ *heard) {
			d.settlements = append(d.settlements, d.settlements[0])
		}, "a1 was settled 2 times"},
		"SettledUnpaid": {func(d *daybook, _ *heard) {
			d.settlements[0].reservation = "x"
		}, "reservation x was settled, and never charged"},
		"SettledApart": {func(d *daybook, _ *heard) { d.settlements[0].xact = 20 }, "a1 was settled in another transaction"},
		"SettledAlone": {func(d *daybook, _ *heard) {
			d.settlements = append(d.settlements, settlement{20, "b1"})
		}, "b1 was settled, and its work is not done"},
		"NotSettled": {func(d *daybook, _ *heard) {
			d.settlements = d.settlements[1:]
		}, "a1: its work is done, and it was not settled"},
		"OtherUsage":     {func(d *daybook, _ *heard) { d.reports[0].used = 61 }, "the upstream has not said that 61 was used"},
		"UsageOfAFailed": {func(_ *daybook, h *heard) { h.answers[0].Failed = true }, "the upstream has not said that 60 was used"},
		"DoneTwice": {func(d *daybook, _ *heard) {
			d.reports = append(d.reports, d.reports[0])
		}, "job 1 is completed, and was done 2 times"},
		"NeverDone":         {func(d *daybook, _ *heard) { d.reports = d.reports[1:] }, "job 1 is completed, and was done 0 times"},
		"NotCompleted":      {func(d *daybook, _ *heard) { d.jobs[0].state = "running" }, "job 1 is running in the end"},
		"CancelledByNobody": {func(_ *daybook, h *heard) { h.cancels["d"] = false }, "job 4 is cancelled in the end"},
		"CancelledAndDone": {func(d *daybook, h *heard) {
			d.jobs[0].state, h.cancels["a"] = "cancelled", true
		}, "job 1 is cancelled, and was done"},
		"JobLost":        {func(d *daybook, _ *heard) { d.jobs = d.jobs[1:] }, "a: its job 1 does not exist"},
		"JobForNothing":  {func(d *daybook, _ *heard) { d.asks = d.asks[1:] }, "a: 1 jobs, and 0 were asked for"},
		"AskLost":        {func(_ *daybook, h *heard) { h.records["e"].class = granted }, "e: its caller got nil"},
		"ErrorCommitted": {func(_ *daybook, h *heard) { h.records["a"].class = away }, "a: its caller got an error"},
		"TwiceThere":     {func(d *daybook, _ *heard) { d.asks = append(d.asks, d.asks[0]) }, "a: is there 2 times"},
		"ToldOtherwise":  {func(_ *daybook, h *heard) { h.told["b1"] = true }, "b1: its worker knows it to be settled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, h := kept()
			c.spoil(d, h)
			if v := inspect(d, h).violations; !strings.Contains(strings.Join(v, "\n"), c.want) {
				t.Errorf("found %q, want %q", v, c.want)
			}
		})
	}
}
