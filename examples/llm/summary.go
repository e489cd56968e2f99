package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/examples/llm/standin"
)

// summary is what the demo ends with.
type summary struct {
	budget  budget
	counts  counts
	denied  int64
	refused int64
	late    []time.Duration // of reserved jobs, ascending
	used    int
	log     *standin.Log // nil with a real API
}

func summarize(ctx context.Context, s *store, b budget, denied, refused int64, log *standin.Log) (summary, error) {
	sum := summary{budget: b, denied: denied, refused: refused, log: log}
	var err error
	if sum.counts, err = s.counts(ctx); err != nil {
		return sum, err
	}
	if sum.late, err = s.lateness(ctx); err != nil {
		return sum, err
	}
	sum.used, err = s.used(ctx)
	return sum, err
}

func (s summary) print(p *progress) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format+"\n", args...) }
	line("")
	line("requests          %d, all answered: %d", s.counts.saved, s.counts.answered)
	line("granted at once   %d", s.counts.saved-s.counts.reserved)
	line("reserved ahead    %d", s.counts.reserved)
	line("denied            %d", s.denied)
	line("429s received     %d", s.refused)
	line("tokens used       %d", s.used)
	if n := len(s.late); n > 0 {
		at := func(q float64) time.Duration { return s.late[min(n-1, int(q*float64(n)))].Round(time.Millisecond) }
		line("start after plan  p50 %v, p99 %v, latest %v, earliest %v", at(0.5), at(0.99), at(1), at(0))
	}
	if s.log == nil {
		return
	}
	line("API's own log     %.0f %% of its limit in the fullest %v", 100*s.log.Peak(), s.budget.minute)
	line("")
	line("tokens that the API served, by windows of %v against its limit of %d:", s.budget.minute, s.budget.tokens)
	calls := s.log.Calls()
	if len(calls) == 0 {
		return
	}
	first := calls[0].At
	windows := make([]int, calls[len(calls)-1].At.Sub(first)/s.budget.minute+1)
	for _, c := range calls {
		windows[c.At.Sub(first)/s.budget.minute] += c.Tokens
	}
	for i, n := range windows {
		line("%6s  %s  %d", time.Duration(i)*s.budget.minute, p.bar(float64(n)/float64(s.budget.tokens), 40), n)
	}
}
