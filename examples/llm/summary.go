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
	books   books
	log     *standin.Log // nil with a real API

	greedy, modest []time.Duration // what their messages have waited, ascending
}

// summarize sums up the calls that were reserved.
func summarize(
	ctx context.Context, s *store, b budget, l limits, denied int64, log *standin.Log,
) (summary, error) {
	sum := summary{budget: b, denied: denied, log: log}
	var err error
	if sum.counts, err = s.counts(ctx); err != nil {
		return sum, err
	}
	if sum.late, err = s.lateness(ctx); err != nil {
		return sum, err
	}
	sum.books, err = s.books(ctx, l.chatTokens)
	return sum, err
}

// end adds the lines that sum up all calls and the fair line.
func (s *summary) end(ctx context.Context, st *store, refused int64) (err error) {
	s.refused = refused
	if s.greedy, err = st.waited(ctx, greedy); err == nil {
		s.modest, err = st.waited(ctx, modest)
	}
	return err
}

// at is a quantile of what is in ascending order.
func at(all []time.Duration, q float64) time.Duration {
	n := len(all)
	return all[min(n-1, int(q*float64(n)))].Round(time.Millisecond)
}

func (s summary) print(p *progress) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format+"\n", args...) }
	line("")
	line("requests          %d, all answered: %d", s.counts.saved, s.counts.answered)
	line("                  %d granted at once, %d reserved ahead, %d denied",
		s.counts.saved-s.counts.reserved, s.counts.reserved, s.denied)
	line("429s received     %d", s.refused)
	line("tokens reserved   %.0f, as the estimates were", s.books.reserved)
	line("  used            %.0f, as the API said in the end", s.books.used)
	line("  given back      %.0f, to those who waited", s.books.givenBack)
	if s.books.charged > 0 {
		line("  charged         %.0f, beyond the estimates", s.books.charged)
	}
	if s.books.kept >= 0.5 {
		line("  kept            %.0f, for calls that failed without an answer", s.books.kept)
	}
	if len(s.late) > 0 {
		line("budget used       %.1f %% of what flowed in for as long as jobs waited",
			100*s.books.share)
		if s.books.earlier > 0 {
			line("start             %.1f s earlier than planned at first, on average",
				s.books.earlier.Seconds())
		}
		line("start after due   p50 %v, p99 %v, latest %v, earliest %v", at(s.late, 0.5),
			at(s.late, 0.99), at(s.late, 1), at(s.late, 0))
	}
	for _, t := range []struct {
		name   string
		waited []time.Duration
	}{{greedy, s.greedy}, {modest, s.modest}} {
		if n := len(t.waited); n > 0 {
			line("%s in line    %d messages waited p50 %v, longest %v", t.name, n,
				at(t.waited, 0.5), at(t.waited, 1))
		}
	}
	if s.log == nil {
		return
	}
	line("API's own log     %.0f %% of its limit in the fullest %v", 100*s.log.Peak(),
		s.budget.minute)
	line("")
	line("tokens that the API counted, by windows of %v against its limit of %d:", s.budget.minute,
		s.budget.tokens)
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
		line("%6s  %s  %d", time.Duration(i)*s.budget.minute,
			p.bar(float64(n)/float64(s.budget.tokens), 40), n)
	}
}
