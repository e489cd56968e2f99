package ratelimit

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
)

func reservationOf(calls ...call) Reservation {
	r := Reservation{ID: newID(noon)}
	for _, c := range calls {
		r.Takes = append(r.Takes, Take{Limit: c.Name, Key: c.Key, Count: c.Count, rule: c.Rule, left: algebra.Left{Since: noon, Owed: -1}})
	}
	return r
}

func TestWhatIsNotNamedWasUsedAsReserved(t *testing.T) {
	t.Parallel()
	r := reservationOf(resolved(t, apples.For("x").Count(5), apples.For("y").Count(3), pears.Global().Count(2))...)
	other := FixedWindow{Rate: 1, Period: time.Hour}
	for name, tc := range map[string]struct {
		requests []Request
		want     []float64
	}{
		"none":           {nil, []float64{5, 3, 2}},
		"one":            {[]Request{apples.For("y").Count(1)}, []float64{5, 1, 2}},
		"nothing":        {[]Request{apples.For("x").Count(0)}, []float64{0, 3, 2}},
		"more":           {[]Request{pears.Global().Count(1e12)}, []float64{5, 3, 1e12}},
		"several":        {[]Request{apples.For("x").Count(1), pears.Global(), apples.For("x").Count(2.5)}, []float64{3.5, 3, 1}},
		"as in the call": {[]Request{apples.For("x").Count(4).OrReserve().Rule(other)}, []float64{4, 3, 2}},
	} {
		if got, err := r.used(tc.requests); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v and %v, want %v", name, got, err, tc.want)
		}
	}
	for name, requests := range map[string][]Request{
		"another key":   {apples.For("z")},
		"another limit": {pears.For("x")},
		"no limit":      {Limit{}.For("x")},
		"below 0":       {apples.For("x").Count(-1)},
		"NaN":           {apples.For("x").Count(math.NaN())},
		"infinite":      {apples.For("x").Count(math.Inf(1))},
		"too many":      {apples.For("x").Count(math.MaxFloat64 / 5), apples.For("x").Count(math.MaxFloat64 / 5)},
		"one of two":    {apples.For("x"), apples.For("x").Count(-1)},
	} {
		got, err := r.used(requests)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v and %v", name, got, err)
		}
		if strings.HasPrefix(name, "another") && !strings.Contains(err.Error(), `has taken from: apples of "x"`) {
			t.Errorf("%s: it does not say from what: %v", name, err)
		}
	}
}

// If all that was reserved was used, then of each row exactly what was taken there.
func TestWhatWasReservedOfSeveralRowsIsUsedAsItWasTaken(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, sum := Reservation{ID: newID(noon)}, 0.0
		for range rapid.IntRange(1, 6).Draw(t, "rows") {
			n := float64(rapid.IntRange(1, 1000).Draw(t, "count"))
			r.Takes, sum = append(r.Takes, Take{Limit: apples.Name(), Key: "x", Count: n}), sum+n
		}
		got, err := r.used([]Request{apples.For("x").Count(sum)})
		if err != nil {
			t.Fatal(err)
		}
		for i, take := range r.Takes {
			if got[i] != take.Count {
				t.Fatalf("%v of %v were used", got, r.Takes)
			}
		}
	})
}

// Each token that was used is counted once, however many takes of 0 tokens a Renew has made of one.
func TestTakesOfOneBalanceShareWhatWasUsed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ reserved, want []float64 }{
		{[]float64{0, 0, 0, 0}, []float64{500, 0, 0, 0}},
		{[]float64{0, 5, 0}, []float64{0, 500, 0}},
		{[]float64{5, 5, 10, 0}, []float64{125, 125, 250, 0}},
	} {
		var calls []call
		for _, n := range tc.reserved {
			calls = append(calls, resolved(t, apples.For("x").Count(n))...)
		}
		r := reservationOf(calls...)
		if got, err := r.used([]Request{apples.For("x").Count(500)}); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v and %v, want %v", tc.reserved, got, err, tc.want)
		}
	}
}

func TestSettlingNeedsAReservationAndATransaction(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{})
	sound := reservationOf(resolved(t, apples.For("x"))...)
	if _, err := l.Settle(t.Context(), nil, sound); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := l.Release(t.Context(), nil, sound); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := l.Renew(t.Context(), nil, &sound); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := l.InSQL(nil).Settle(t.Context(), sound); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := l.InSQL(nil).Release(t.Context(), sound); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	for _, r := range []Reservation{{}, {ID: sound.ID}, {ID: uuid.Nil, Takes: sound.Takes}} {
		nowhere := &within{l: l}
		if _, err := nowhere.Settle(t.Context(), r); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if _, err := nowhere.Release(t.Context(), r); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if err := l.renew(t.Context(), executor{}, []*Reservation{&sound, &r}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	if err := l.renew(t.Context(), executor{}, nil); err != nil {
		t.Error(err)
	}
}

// Work runs when its part of the debt is repaid by what flows in, and by what those before it give
// back.
func TestATakeRunsByHowItsLimitStands(t *testing.T) {
	t.Parallel()
	bucket := resolved(t, apples.For("x").Rule(TokenBucket{Rate: 10, Period: 10 * time.Second}))[0].Rule
	window := resolved(t, apples.For("x").Rule(FixedWindow{Rate: 10, Period: time.Minute, Start: at(0)}))[0].Rule
	for _, tc := range []struct {
		rule         algebra.Rule
		owed         float64
		state        State
		run, pacedAt time.Duration
	}{
		{bucket, 4, State{}, 4 * time.Second, 4 * time.Second},
		{bucket, 4, State{Moved: 1, Delay: time.Second}, 3 * time.Second, 3 * time.Second},
		{bucket, 4, State{Moved: 5.5, Delay: time.Second}, 0, 0},
		{bucket, 4, State{Moved: -7, Delay: time.Second}, 11 * time.Second, 11 * time.Second},
		{bucket, 4, State{Moved: 0, Delay: 6 * time.Second}, 9 * time.Second, 9 * time.Second},
		{bucket, -3, State{}, 0, 0},
		{bucket, 0, State{Moved: 9, Delay: time.Second}, 0, 0},
		{window, 4, State{}, time.Minute, time.Minute + 6*time.Second},
		{window, 14, State{Delay: time.Second}, 2 * time.Minute, 2*time.Minute + 6*time.Second},
		{window, 14, State{Moved: 5, Delay: time.Second}, time.Minute, time.Minute + 36*time.Second},
		{window, 14, State{Moved: 5, Delay: 2*time.Minute + time.Second}, 3 * time.Minute, 3*time.Minute + 36*time.Second},
		{window, 14, State{Moved: 14, Delay: time.Second}, 0, 0},
	} {
		take := Take{Limit: "apples", Key: "x", Count: 3, rule: tc.rule, left: algebra.Left{
			Since: noon, Owed: tc.owed, Delay: 1e6}}
		if tc.state != (State{}) {
			tc.state.TS = at(0)
		}
		run, paced := take.RunAt(tc.state)
		if !run.Equal(at(tc.run)) || !paced.Equal(at(tc.pacedAt)) {
			t.Errorf("%v owed, at %+v: runs at %v and %v, want %v and %v", tc.owed, tc.state, run,
				paced, at(tc.run), at(tc.pacedAt))
		}
	}
}
