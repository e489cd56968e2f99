package faults

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// heard is what is known otherwise.
type heard struct {
	records map[string]*record
	given   map[string]callArgs
	cancels map[string]bool // what somebody wanted cancelled
	answers []answer        // of the upstream
	unheard int             // charges, at the most, of which those who paid them were kept from hearing
	told    map[string]bool // reservations of which their workers know that they are settled
}

// figures are for the record.
type figures struct {
	jobs, completed, cancelled        int
	calls, failed                     int // answered, with an error
	attempts                          int
	settled, held, released, uncalled int // reservations; held, and not called with
	// tokens that do not flow: charged; of settled reservations used; held; released
	charged, used, kept, returned float64
	lost                          float64 // calls that were charged to somebody who has never heard of it
	worst                         float64 // of the differences
}

func (f *figures) add(g *figures) {
	f.jobs, f.completed, f.cancelled = f.jobs+g.jobs, f.completed+g.completed, f.cancelled+g.cancelled
	f.calls, f.failed, f.attempts = f.calls+g.calls, f.failed+g.failed, f.attempts+g.attempts
	f.settled, f.held, f.released, f.uncalled = f.settled+g.settled, f.held+g.held,
		f.released+g.released, f.uncalled+g.uncalled
	f.charged, f.used, f.kept, f.returned = f.charged+g.charged, f.used+g.used, f.kept+g.kept, f.returned+g.returned
	f.lost += g.lost
	f.worst = max(f.worst, g.worst)
}

// String leaves out nothing.
func (f *figures) String() string {
	return fmt.Sprintf("%d jobs, %d completed and %d cancelled, in %d attempts; %d calls answered, %d with an error; "+
		"%d reservations: %d settled, %d held (%d without a call), %d released; "+
		"of what does not flow %.2f tokens were granted, %.2f of them in reservations that were settled, with %.2f used, %.2f held and %.2f released; %.0f payments were lost with their workers; the books are off by %.1e at the most",
		f.jobs, f.completed, f.cancelled, f.attempts, f.calls, f.failed,
		f.settled+f.held+f.released, f.settled, f.held, f.uncalled, f.released,
		f.charged, f.charged-f.kept-f.returned, f.used, f.kept, f.returned, f.lost, f.worst)
}

// verdict is what an audit of settlements has found.
type verdict struct {
	violations []string
	figures
}

// says counts the violations that have a text in them.
func (v *verdict) says(text string) int { return (&finding{violations: v.violations}).says(text) }

func (v *verdict) say(format string, args ...any) {
	v.violations = append(v.violations, fmt.Sprintf(format, args...))
}

// suspects are some of the jobs that the violations name.
func (v *verdict) suspects() []int64 {
	var jobs []int64
	for _, m := range regexp.MustCompile(`job (\d+)`).FindAllStringSubmatch(strings.Join(v.violations, "\n"), -1) {
		if n, err := strconv.ParseInt(m[1], 10, 64); err == nil && !slices.Contains(jobs, n) && len(jobs) < 5 {
			jobs = append(jobs, n)
		}
	}
	return jobs
}

// paid is a reservation, from the daybook.
type paid struct {
	job      int64
	takes    []charge // in the order of their times
	settled  []settlement
	reports  []report
	answers  []answer
	released bool
}

// exact says that the tokens of a balance can be counted, as nothing flows in.
func exact(of account) bool { return budgets[of.Limit] > 0 }

// inspect returns what is wrong in the daybook, by itself and by what is known otherwise.
func inspect(d *daybook, h *heard) *verdict {
	v := &verdict{}
	reservations := v.gather(d, h)
	v.whole(d, h, reservations)
	for id, r := range reservations {
		v.once(id, r)
	}
	v.balance(d, h, reservations)
	slices.Sort(v.violations)
	return v
}

// gather puts together what belongs to each reservation.
func (v *verdict) gather(d *daybook, h *heard) map[string]*paid {
	all := map[string]*paid{}
	slices.SortStableFunc(d.charges, func(a, b charge) int { return a.since.Compare(b.since) })
	for _, c := range d.charges {
		if all[c.reservation] == nil {
			all[c.reservation] = &paid{job: c.job}
		}
		r := all[c.reservation]
		if r.job != c.job {
			v.say("reservation %s is of job %d and of job %d", c.reservation, r.job, c.job)
		}
		r.takes = append(r.takes, c)
	}
	of := func(id, what string) *paid {
		if all[id] == nil {
			v.say("reservation %s was %s, and never charged", id, what)
			return &paid{}
		}
		return all[id]
	}
	for _, s := range d.settlements {
		r := of(s.reservation, "settled")
		r.settled = append(r.settled, s)
	}
	for _, p := range d.reports {
		r := of(p.reservation, "reported")
		r.reports = append(r.reports, p)
	}
	for _, a := range h.answers {
		r := of(a.Reservation, "called with")
		r.answers = append(r.answers, a)
	}
	return all
}

// whole: each job that was asked for is there, and ends completed with one report, or cancelled
// with none.
func (v *verdict) whole(d *daybook, h *heard, reservations map[string]*paid) {
	jobs, asks, inserted := map[int64]worked{}, map[string]int{}, map[string]int{}
	for _, j := range d.jobs {
		jobs[j.job] = j
		inserted[j.id]++
	}
	reports, ids, calls := map[int64]int{}, map[int64]map[string]bool{}, map[intent]int{}
	for _, r := range d.reports {
		reports[r.job]++
	}
	for id, r := range reservations {
		if ids[r.job] == nil {
			ids[r.job] = map[string]bool{}
		}
		ids[r.job][id] = true
	}
	intents := map[intent]int{}
	for _, i := range d.intents {
		intents[i]++
	}
	for _, a := range h.answers {
		i := intent{a.Job, a.Attempt, a.Reservation}
		if calls[i]++; calls[i] > 1 {
			v.say("job %d called %d times in its attempt %d", a.Job, calls[i], a.Attempt)
		}
		if intents[i] != 1 {
			v.say("job %d called in its attempt %d, and %d times it had wanted to", a.Job, a.Attempt, intents[i])
		}
		if v.calls++; a.Failed {
			v.failed++
		}
	}
	for _, a := range d.asks {
		asks[a.id]++
		args := h.given[a.id]
		j, has := jobs[a.job]
		if !has || j.id != a.id {
			v.say("%s: its job %d does not exist", a.id, a.job)
			continue
		}
		v.jobs++
		v.attempts += j.attempts
		switch {
		case j.state == "completed":
			if v.completed++; reports[a.job] != 1 {
				v.say("job %d is completed, and was done %d times", a.job, reports[a.job])
			}
		case j.state == "cancelled" && h.cancels[a.id]:
			if v.cancelled++; reports[a.job] != 0 {
				v.say("job %d is cancelled, and was done", a.job)
			}
		default:
			v.say("job %d is %s in the end", a.job, j.state)
		}
		switch n := len(ids[a.job]); {
		case args.Once && n != 1:
			v.say("job %d has paid %d times, and was to pay once", a.job, n)
		case n < 1 || n > max(1, j.attempts):
			v.say("job %d has paid %d times, for %d attempts", a.job, n, j.attempts)
		}
		for id := range ids[a.job] {
			r := reservations[id]
			if n := len(r.answers); n > 1 && !args.Once {
				v.say("job %d called %d times with what it has paid once, %s", a.job, n, id)
			}
			v.asGiven(a.job, args, r)
		}
	}
	for id, n := range inserted {
		if asks[id] != n {
			v.say("%s: %d jobs, and %d were asked for", id, n, asks[id])
		}
	}
	for id, r := range h.records {
		switch n := asks[id]; {
		case n > 1:
			v.say("%s: is there %d times", id, n)
		case r.class == granted && n == 0:
			v.say("%s: its caller got nil, and there is nothing of it", id)
		case r.class.final() && n > 0:
			v.say("%s: its caller got an error (%s: %s), and it was committed", id, r.class, r.text)
		}
	}
	for id := range h.told {
		if r := reservations[id]; r == nil || len(r.settled) != 1 || len(r.reports) != 1 {
			v.say("reservation %s: its worker knows it to be settled, and it is not", id)
		}
	}
}

// asGiven: a reservation takes what the job was to take.
func (v *verdict) asGiven(job int64, args callArgs, r *paid) {
	want := args.takes()
	for _, c := range r.takes {
		if !slices.Contains(want, c.take) {
			v.say("job %d has paid %v of %v", job, c.Tokens, c.Account)
		}
	}
	if n := len(r.takes); n != len(want) {
		v.say("job %d has paid %v times for its reservation %s", job, float64(n)/2, r.takes[0].reservation)
	}
}

// once: a reservation is settled by the transaction that reports what the upstream has said, or
// released as nobody has called, or held.
func (v *verdict) once(id string, r *paid) {
	if n := len(r.settled); n > 1 {
		v.say("reservation %s was settled %d times, of job %d", id, n, r.job)
	}
	switch {
	case len(r.settled) == 0 && len(r.reports) == 0:
		if v.held++; len(r.answers) == 0 {
			v.uncalled++
		}
	case len(r.settled) == 0:
		v.say("reservation %s: its work is done, and it was not settled, of job %d", id, r.job)
	case len(r.reports) == 0 && len(r.answers) > 0:
		v.say("reservation %s was settled, and its work is not done: of job %d, which has called with it in attempt %d",
			id, r.job, r.answers[0].Attempt)
	case len(r.reports) == 0:
		v.released++
		r.released = true
	default:
		v.settled++
	}
	for _, p := range r.reports {
		if len(r.settled) > 0 && r.settled[0].xact != p.xact {
			v.say("reservation %s was settled in another transaction than its work was done, of job %d", id, r.job)
		}
		if !slices.ContainsFunc(r.answers, func(a answer) bool {
			return a.Job == p.job && a.Attempt == p.attempt && a.Used == p.used && !a.Failed
		}) {
			v.say("reservation %s: the upstream has not said that %v was used in attempt %d of job %d",
				id, p.used, p.attempt, p.job)
		}
	}
}

// balance: in each transaction, and in all together, tokens gone are those that were charged, less
// those that were settled and not used. So what was granted is what was used, what is held, and
// what was released. What jobs have paid later comes from transactions that do nothing else; with
// it may come what was paid by workers that died before they could tell.
func (v *verdict) balance(d *daybook, h *heard, reservations map[string]*paid) {
	type place struct {
		xact int64
		account
	}
	booked, moved := map[place]float64{}, map[place]float64{}
	gone, left, anew := map[account]float64{}, map[account]float64{}, map[account]float64{}
	for _, r := range reservations {
		for i, c := range r.takes {
			if !exact(c.Account) {
				continue
			}
			if c.xact == 0 {
				anew[c.Account] -= c.Tokens
			} else {
				booked[place{c.xact, c.Account}] += c.Tokens
			}
			v.charged += c.Tokens
			gone[c.Account] += c.Tokens
			if i >= 2 || len(r.settled) == 0 {
				v.kept += c.Tokens
				continue
			}
			used := 0.0
			if len(r.reports) > 0 {
				used = 1
				if c.Account.Limit == budgetTokens.Name() {
					used = r.reports[0].used
				}
				v.used += used
			} else {
				v.returned += c.Tokens
			}
			booked[place{r.settled[0].xact, c.Account}] -= c.Tokens - used
			gone[c.Account] -= c.Tokens - used
		}
	}
	for _, m := range d.movements {
		if exact(m.Account) {
			moved[place{m.xact, m.Account}] -= m.Tokens
			left[m.Account] -= m.Tokens
		}
	}
	for p, n := range booked {
		if !v.same(n, moved[p]) {
			v.say("transaction %d: %v tokens went from %v, and the reservations say %v", p.xact, moved[p], p.account, n)
		}
	}
	for p, n := range moved {
		if _, has := booked[p]; has {
			continue
		}
		if n < 0 && !same(n, 0) {
			v.say("transaction %d: %v tokens came back to %v, and no reservation says why", p.xact, -n, p.account)
		}
		anew[p.account] += n
	}
	v.unheard(h, anew, gone)
	for of, n := range left {
		if _, has := gone[of]; !has && !v.same(n, 0) {
			v.say("%v: %v tokens are gone, and no reservation says why", of, n)
		}
	}
	for of, value := range d.balances {
		lacks := budgets[of.Limit] - value
		if exact(of) && (!v.same(lacks, gone[of]) || !v.same(lacks, left[of])) {
			v.say("%v: %v tokens are gone, the reservations say %v, and its changes %v", of, lacks, gone[of], left[of])
		}
	}
	for of, n := range gone {
		if _, has := d.balances[of]; !has {
			v.say("%v: %v tokens are gone, and there is no balance", of, n)
		}
	}
}

// unheard looks at what was paid later and is in no reservation: as many calls, at the most, as
// workers were kept from hearing of, and tokens only if there are calls.
func (v *verdict) unheard(h *heard, anew, gone map[account]float64) {
	tokens := 0.0
	for of, n := range anew {
		switch {
		case same(n, 0):
			continue
		case n < 0:
			v.say("%v: jobs have paid %v tokens later, and they are there", of, -n)
			continue
		case of.Limit == budgetTokens.Name():
			tokens += n
		default:
			v.lost += n
		}
		gone[of] += n
	}
	if calls := v.lost; calls > float64(h.unheard) || !same(calls, math.Round(calls)) || calls == 0 && tokens > 0 {
		v.say("%v calls and %v tokens were charged later, and no reservation says why; %d workers may have been kept from it",
			calls, tokens, h.unheard)
	}
}

func (v *verdict) same(a, b float64) bool {
	v.worst = max(v.worst, math.Abs(a-b))
	return same(a, b)
}
