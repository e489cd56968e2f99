package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/rig"
)

// blows are those of one audit.
func blows() []blow {
	var all []blow
	for b, n := range map[blow]int{
		{called, killed}:           2,
		{answered, killed}:         4,
		{settled, killed}:          4,
		{completed, killed}:        4,
		{completed, killedMoving}:  4,
		{committed, killed}:        1,
		{renewed, killed}:          2,
		{renewed, connectionCut}:   2,
		{answered, serverShutDown}: 1,
		{completed, serverKilled}:  1,
		{completed, serverMoving}:  1,
		{renewed, serverKilled}:    1,
	} {
		if foreign() && strings.HasPrefix(b.how, "server") {
			continue
		}
		for range n {
			all = append(all, b)
		}
	}
	rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all
}

// Workers die between the upstream's answer and COMMIT, and the server does; each of these is a
// round. Then tokens granted are those settled, held and released, nothing was charged twice, and
// nothing is lost.
func TestSettlementsWhenWorkersAndTheServerAreKilled(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	o := newOffice(t, settling)
	start := time.Now()
	for enough := rounds(t, 1); !enough(o.rounds); {
		o.hire(t, o.kind, o.kind, o.kind)
		stop := o.ask(t)
		o.callers.await(t, granted, 20)
		for _, b := range blows() {
			o.strike(t, b)
		}
		stop()
		o.finish(t)
		v := o.inspect(t)
		for i, text := range v.violations {
			if i == 20 {
				t.Errorf("and %d more", len(v.violations)-i)
				break
			}
			t.Errorf("round %d: %s", o.rounds, text)
		}
		if len(v.violations) > 0 {
			for _, job := range v.suspects() {
				t.Log(o.history(t, job))
			}
			t.FailNow()
		}
		o.total.add(&v.figures)
		o.clear(t)
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(o.blows)) {
		parts = append(parts, fmt.Sprintf("%d %s", o.blows[k], k))
	}
	summary := fmt.Sprintf("faults: %s: %d rounds in %.1f s (%s), %d workers killed (asking: %s): %s",
		t.Name(), o.rounds, time.Since(start).Seconds(),
		strings.Join(parts, ", "), len(o.killed), o.callers, &o.total)
	t.Log(summary)
	fmt.Println(summary)
}

// The same audit finds workers that break the promises.
func TestTheAuditFindsWorkersThatDoNotSettleAsTheyShould(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		kind  kind
		fault blow
		want  string // of one of the violations
	}{
		{"SettlesBeforeTheTransaction", apart, blow{between, killed}, "was settled, and its work is not done"},
		{"SettlesAfterTheTransaction", belated, blow{between, killed}, "its work is done, and it was not settled"},
		{"GivesBackTwice", generous, blow{answered, killed}, "tokens are gone, the reservations say"},
		{"DoesNotPayAgain", unpaying, blow{answered, killed}, "with what it has paid once"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, c.kind)
			found := 0
			var v *verdict
			for ; found == 0 && o.rounds < 20; o.clear(t) { // a fault hits callers at random
				o.hire(t, o.kind, o.kind)
				stop := o.ask(t)
				o.callers.await(t, granted, 20)
				o.strike(t, c.fault)
				stop()
				o.finish(t)
				v = o.inspect(t)
				found = v.says(c.want)
			}
			if found == 0 {
				t.Errorf("in %d rounds no violation says %q; the last had %d: %q", o.rounds, c.want,
					len(v.violations), v.violations)
			} else {
				fmt.Printf("faults: the audit of settlements bites: %s: %d violations, %d of them %q, in round %d\n",
					c.name, len(v.violations), found, c.want, o.rounds)
			}
		})
	}
}
