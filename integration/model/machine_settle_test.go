package model

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// reserved is what somebody has kept of a grant: its reservation, and what the model knows of that.
type reserved struct {
	r     ratelimit.Reservation
	takes []held
}

// renewer is a place that can charge anew.
type renewer interface {
	Renew(ctx context.Context, reservations ...*ratelimit.Reservation) error
}

// pick draws the place of something kept, or -1.
func (m *machine) pick(t *rapid.T) int {
	if len(m.kept) == 0 {
		return -1
	}
	return rapid.IntRange(0, len(m.kept)-1).Draw(t, "which")
}

// unrenewed is what is kept after a rollback: reservations as they were before, and those that were
// taken since, whose tokens are back, but which may be settled all the same.
func unrenewed(before, after []reserved) []reserved {
	for _, k := range after {
		if !slices.ContainsFunc(before, func(b reserved) bool { return b.r.ID == k.r.ID }) {
			before = append(before, k)
		}
	}
	return before
}

// readAgain is the reservation as it comes out of a table, or as it is.
func readAgain(t *rapid.T, r ratelimit.Reservation) ratelimit.Reservation {
	if rapid.Bool().Draw(t, "as it is") {
		r.Takes = slices.Clone(r.Takes)
		return r
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again ratelimit.Reservation
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, r) {
		t.Fatalf("%s was read back as %+v, want %+v", text, again, r)
	}
	return again
}

func (m *machine) settle(t *rapid.T, at place, release bool) {
	i := m.pick(t)
	if i < 0 {
		if ok, err := at.Settle(t.Context(), ratelimit.Reservation{}); ok || !errors.Is(err, ratelimit.ErrInvalid) {
			t.Fatalf("settling nothing: %v", err)
		}
		if ok, err := at.Release(t.Context(), ratelimit.Reservation{}); ok || !errors.Is(err, ratelimit.ErrInvalid) {
			t.Fatalf("releasing nothing: %v", err)
		}
		return
	}
	k, now := m.kept[i], m.now()
	until := settleable(k.takes)
	_, done := m.settled[k.r.ID.String()]
	want := !done && until > now
	r := readAgain(t, k.r)

	var ok bool
	var err error
	var requests []ratelimit.Request
	var used []float64
	if release {
		ok, err = at.Release(t.Context(), r)
	} else {
		var refused bool
		requests, used, refused = m.drawUsed(t, k.takes)
		ok, err = at.Settle(t.Context(), r, requests...)
		if refused {
			if m.n["settle refused"]++; ok || !errors.Is(err, ratelimit.ErrInvalid) {
				t.Fatalf("%+v settled by %+v: %v and %v", r, requests, ok, err)
			}
			return
		}
	}
	if err != nil || ok != want {
		t.Fatalf("%+v settled by %+v at %v: %v and %v, want %v", r, requests, instant(now), ok, err, want)
	}
	if rapid.IntRange(0, 2).Draw(t, "again") > 0 {
		m.kept = slices.Delete(slices.Clone(m.kept), i, i+1)
	}
	if !want {
		m.n["settled already"]++
		return
	}
	m.settled[k.r.ID.String()] = until
	if release {
		m.book.giveBack(k.takes, now)
		return
	}
	m.book.settle(k.takes, used, now)
}

// drawUsed draws what the takes have used in truth, and the requests that say so; refused says that
// one of those is wrong.
func (m *machine) drawUsed(t *rapid.T, takes []held) (requests []ratelimit.Request, used []float64, refused bool) {
	request := func(h held, n float64) ratelimit.Request {
		i := slices.IndexFunc(m.limits, func(l machineLimit) bool { return l.limit.Name() == h.limit })
		r := m.limits[i].limit.Global()
		if h.key != "" {
			r = m.limits[i].limit.For(h.key)
		}
		if rapid.IntRange(0, 3).Draw(t, "or reserve") == 0 {
			r = r.OrReserve() // does not matter
		}
		return r.Count(n)
	}
	used = make([]float64, len(takes))
	for i, h := range takes {
		n := h.n
		switch rapid.SampledFrom([]string{"unnamed", "none", "below", "below", "equal", "above",
			"above", "twice"}).Draw(t, "used") {
		case "unnamed":
			used[i] = h.n
			continue
		case "none":
			n = 0
		case "below":
			n *= rapid.SampledFrom([]float64{0.25, 0.5, 0.75}).Draw(t, "of it")
		case "above":
			n += rapid.SampledFrom([]float64{0.25, 1, 3, 8}).Draw(t, "more")
		case "twice":
			requests = append(requests, request(h, n/2))
			used[i] = n / 2
		}
		used[i] += n
		requests = append(requests, request(h, n))
	}
	requests = rapid.Permutation(requests).Draw(t, "order")
	if rapid.IntRange(0, 9).Draw(t, "wrong") > 0 {
		return requests, used, false
	}
	wrong := m.limits[0].limit.For("no such key")
	switch rapid.IntRange(0, 3).Draw(t, "how") {
	case 0:
		wrong = request(takes[0], math.NaN())
	case 1:
		wrong = request(takes[0], -0.25)
	case 2:
		wrong = ratelimit.Limit{}.For("k")
	}
	return append(requests, wrong), used, true
}

// renew charges some reservations anew, in any order. They may be settled already, or their takes
// rolled back.
func (m *machine) renew(t *rapid.T, at place) {
	to, ok := at.Verbs.(renewer)
	if !ok || len(m.kept) == 0 {
		return
	}
	m.n["renewed"]++
	all := make([]int, len(m.kept))
	for i := range all {
		all[i] = i
	}
	some := rapid.Permutation(all).Draw(t, "which")
	some = some[:rapid.IntRange(1, min(3, len(some))).Draw(t, "how many")]
	kept := slices.Clone(m.kept)
	reservations, takes := make([]*ratelimit.Reservation, len(some)), make([][]held, len(some))
	for n, i := range some {
		r := readAgain(t, kept[i].r)
		kept[i] = reserved{r, slices.Clone(kept[i].takes)}
		reservations[n], takes[n] = &kept[i].r, kept[i].takes
	}
	if err := to.Renew(t.Context(), reservations...); err != nil {
		t.Fatal(err)
	}
	m.book.renew(takes, m.now())
	m.kept = kept
}

func (m *machine) compareSettled(t *rapid.T, at place) {
	rows := map[string]int64{}
	err := at.query(t.Context(), `SELECT id::text, until FROM weir_settled`, func(scan func(...any) error) error {
		var id string
		var until time.Time
		if err := scan(&id, &until); err != nil {
			return err
		}
		rows[id] = until.UnixMicro()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(rows, m.settled) {
		t.Fatalf("settled are\n%v, want\n%v", rows, m.settled)
	}
}

// compareDue compares when the work of a reservation may run.
func (m *machine) compareDue(t *rapid.T, k *reserved) {
	for i := range k.takes {
		h := &k.takes[i]
		e := m.book[h.account]
		run, paced := h.due(e.delay, e.moved, m.now())
		take := k.r.Takes[i]
		gotRun, gotPaced := take.RunAt(ratelimit.State{Value: e.value, TS: m.clock.Now(),
			Delay: rig.Micros(e.delay), Moved: e.moved})
		if take.Limit != h.limit || take.Key != h.key || take.Count != h.n ||
			!gotRun.Equal(instant(run)) || !gotPaced.Equal(instant(paced)) {
			t.Fatalf("%+v of %+v runs at %v and %v, want %v and %v", *h, e, gotRun, gotPaced,
				instant(run), instant(paced))
		}
	}
}
