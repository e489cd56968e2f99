package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// report says what was done, and holds the errors that were met against those that make sense.
func (f *fixture) report(t *testing.T, x fault, took time.Duration) {
	t.Helper()
	for _, v := range f.callers.senseless(x) {
		t.Error(v)
	}
	bounded := 0
	for _, only := range f.merged {
		if only {
			bounded++
		}
	}
	did := f.app.done
	summary :=
		fmt.Sprintf("faults: %s: %d rounds in %.1f s (%s; %d runs after a conflict; %d settled, %d pauses, %d changes of shards; %d accounts with shards that wait for a merge, of which %d are only known to be within bounds): tokens, work, reservations, jobs and what each caller was told agree",
			t.Name(), f.rounds, took.Seconds(), f.callers, did.again.Load(), did.settled.Load(),
			did.pauses.Load(), did.reshardings.Load(), len(f.merged), bounded)
	t.Log(summary)
	fmt.Println(summary)
}

// spared says that no caller has met an error which the fault is to show.
func (c *callers) spared(x fault) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(x.hits, func(k class) bool { return c.classes[k] == 0 })
}

// senseless returns the errors that do not fit a fault, and those that should have been met and
// were not.
func (c *callers) senseless(x fault) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	examples := map[class]string{}
	for _, r := range c.records {
		examples[r.class] = r.text
	}
	var violations []string
	for k, n := range c.classes {
		if k != granted && k != denied && !slices.Contains(x.hits, k) && !slices.Contains(x.allowed, k) {
			violations = append(violations, fmt.Sprintf(
				"%d callers met an error of class %q, which does not fit: %s", n, k, examples[k],
			))
		}
	}
	for _, k := range x.hits {
		if c.classes[k] == 0 {
			violations = append(violations, fmt.Sprintf("no caller met an error of class %q", k))
		}
	}
	return violations
}
