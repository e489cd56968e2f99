package main

import (
	"fmt"
	"slices"
	"time"
)

// explainTurn says who goes before a job that waits in line.
func (s *session) explainTurn(a *explained, l *inLine) {
	own := "it has no place yet"
	switch {
	case a.Turn > 0:
		own = number(float64(a.Turn))
	case a.Until.After(time.Now()):
		own = "not before " + instant(a.Until)
	case l.More:
		own = "later than those of the jobs that were read"
	}
	line := func(name, text string) { s.e.sayf("  %-9s %s\n", name, text) }
	line("turn", own)
	if a.Turn > 0 {
		line("charged",
			fmt.Sprintf("its tenant will have had %s tokens more than all who wait have had, for a weight of 1",
				number(a.Charged)))
	}
	for i, b := range a.Before[:min(len(a.Before), mostBefore)] {
		name := ""
		if i == 0 {
			name = "after"
		}
		line(name, fmt.Sprintf("%s of tenant %s", several(int64(b.Jobs), "job"),
			printable(b.Tenant)))
	}
	if n := len(a.Before) - mostBefore; n > 0 {
		line("", "and of "+several(int64(n), "other tenant"))
	}
	if a.PassedBy != nil {
		line("passed", "over, as "+nameOf(a.PassedBy.Limit,
			a.PassedBy.Key)+" has too few tokens for its tenant's next job")
	}
	if l.assumes() {
		s.e.sayf("  %s\n", assumed)
	}
}

// explainSlot says when a job is given a slot.
func (s *session) explainSlot(a *explained) {
	turn := number(float64(a.Turn))
	switch {
	case a.QueuePaused:
		turn = "none while its queue is paused; it keeps its place"
	case a.Turn == 0:
		turn = "later than those of the jobs that were read"
	}
	s.e.sayf("  %-9s %s\n", "turn", turn)
}

const mostBefore = 10 // tenants that are named

// before is how many jobs of a tenant go before another job.
type before struct {
	Tenant string `json:"tenant"`
	Jobs   int    `json:"jobs"`
}

// place adds what the line tells of a job.
func (a *explained) place(l *inLine) {
	mine := slices.IndexFunc(l.Jobs, func(j jobInLine) bool { return j.Job == a.Job })
	if mine >= 0 {
		a.Turn, a.Charged = l.Jobs[mine].Turn, l.Jobs[mine].Charged
	}
	for _, t := range l.Tenants {
		if t.Tenant == a.Tenant {
			a.PassedBy = t.PassedBy
		}
	}
	if a.Turn == 0 {
		return
	}
	at := map[string]int{}
	for _, j := range l.Jobs[:mine] { // those that have started meanwhile are not listed
		i, known := at[j.Tenant]
		if !known {
			i = len(a.Before)
			at[j.Tenant] = i
			a.Before = append(a.Before, before{Tenant: j.Tenant})
		}
		a.Before[i].Jobs++
	}
}
