package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A modest tenant that comes behind all messages of a greedy one does not wait for them, and the
// summary says what each has waited.
func TestTheModestTenantDoesNotWaitForTheGreedyOne(t *testing.T) {
	t.Parallel()
	s := demo(t)
	o := options{shards: 1, requests: 10, greedy: 60,
		budget: budget{api: "line ", minute: 2 * time.Second, tokens: 8000, requests: 200}}
	api := standIn(t, o.budget)
	out, err := s.run(t, o, api.BaseURL(), api.Log)
	if err != nil {
		t.Fatal(err)
	}
	var messages, answered, settled, before, behind int
	s.scan(t, `SELECT count(*), count(answer) FROM message`, &messages, &answered)
	s.scan(t, `SELECT count(*) FROM message JOIN weir_settled s ON s.id = reservation`, &settled)
	if want := o.requests + o.greedy + modestMessages; messages != want || answered != want || settled != want {
		t.Errorf("%d messages, %d answered, %d settled; want %d", messages, answered, settled, want)
	}
	s.scan(t, `SELECT count(*) FILTER (WHERE started_at < first), count(*) FILTER (WHERE started_at > first)
		FROM message, (SELECT min(started_at) AS first FROM message WHERE tenant = 'modest') m WHERE tenant = 'greedy'`,
		&before, &behind)
	if before > behind {
		t.Errorf("%d of the greedy tenant's messages started before the modest one's first, and %d after it",
			before, behind)
	}
	for _, want := range []string{"greedy in line    60 messages waited",
		"modest in line    6 messages waited", "429s received"} {
		if !strings.Contains(out, want) {
			t.Errorf("the summary does not say %q", want)
		}
	}
	for _, l := range strings.Split(out, "\n") {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
	}
}
