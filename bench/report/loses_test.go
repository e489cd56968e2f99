package main

import (
	"strings"
	"testing"
	"time"
)

// made are figures of three contenders, with their rates in each round and setting.
func made(rates map[string][]float64) *figures {
	f := newFigures([]contender{
		{name: "ours", family: weir, joins: true},
		{name: "ours for one key", family: weir, oneKey: true},
		{name: "theirs", family: inRedis},
	})
	for name, cells := range f.cells {
		for _, c := range cells {
			c.rates = rates[name]
		}
	}
	return f
}

func TestFasterIsFasterInEachRound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b   []float64
		by     float64
		always bool
	}{
		{[]float64{20, 40, 90}, []float64{10, 20, 30}, 2, true},
		{[]float64{20, 19, 90}, []float64{10, 20, 30}, 2, false},
		{[]float64{10}, []float64{10}, 1, false},
		{[]float64{10}, []float64{0}, 10, true},
		{nil, nil, 0, false},
	} {
		if by, always := faster(&cell{rates: c.a}, &cell{rates: c.b}); by != c.by || always != c.always {
			t.Errorf("%v against %v: got %v, %v, want %v, %v", c.a, c.b, by, always, c.by, c.always)
		}
	}
}

func TestWhereWeirLosesIsWhatTheFiguresSay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		rates      map[string][]float64
		want, none []string
	}{
		{
			"it wins everywhere",
			map[string][]float64{"ours": {20, 20, 20}, "ours for one key": {30, 30, 30}, "theirs": {10, 10, 10}},
			[]string{"| many keys | 1 caller | ours (20/s) | none |",
				"| one key | 64 callers | ours for one key (30/s) | none |",
				"**theirs** was faster than every way of Weir in none of 8 settings, and slower than every way in all 8 settings."},
			[]string{"times"},
		},
		{
			"it loses everywhere",
			map[string][]float64{"ours": {20, 20, 20}, "ours for one key": {30, 30, 30}, "theirs": {1000, 1001, 999}},
			[]string{"| many keys | 1 caller | ours (20/s) | theirs 50 times |",
				"| one key | 256 callers | ours for one key (30/s) | theirs 33 times |",
				"| one key | 256 callers | ours (20/s) | theirs 50 times |",
				"**theirs** was faster than every way of Weir in all 8 settings, and slower than every way in none of 8 settings."},
			[]string{"| none |"},
		},
		{
			"one way wins, of one key only",
			map[string][]float64{"ours": {20, 20, 20}, "ours for one key": {300, 300, 300}, "theirs": {50, 50, 50}},
			[]string{"| many keys | 16 callers | ours (20/s) | theirs 2.5 times |",
				"| one key | 16 callers | ours for one key (300/s) | none |",
				"**theirs** was faster than every way of Weir in 4 of 8 settings, and slower than every way in none of 8 settings."},
			nil,
		},
	} {
		got := made(c.rates).loses()
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: it lacks %q:\n%s", c.name, want, got)
			}
		}
		for _, none := range c.none {
			if strings.Contains(got, none) {
				t.Errorf("%s: it has %q:\n%s", c.name, none, got)
			}
		}
	}
}

func TestWhatIsGrantedIsJudgedByWhatIsAllowed(t *testing.T) {
	t.Parallel()
	b := bucket{1000, time.Second}
	if got := b.allowed(3 * time.Second); got != 4000 {
		t.Errorf("in 3 s %v are allowed, want 4000", got)
	}
	f := made(nil)
	audited := func(name string, all int, granted ...int) {
		for _, n := range granted {
			f.audits[name].add(&slice{all: all, granted: n, elapsed: 3 * time.Second}, b)
		}
	}
	audited("ours", 9000, 3999, 4001, 3000) // the clocks need not agree to a thousandth
	audited("ours for one key", 9000, 3900)
	audited("theirs", 9000, 4000, 4400, 3900)
	if got, want := f.auditText(), "More than the limit allows was granted by theirs (10.0 %).\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := f.auditTable(), "| theirs | 0 | 4,400 | 4,000 | 110.0 % | 10.0 % |"; !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}

	f = made(nil)
	audited("ours", 9000, 4000)
	audited("ours for one key", 2000, 2000) // as many as it could
	audited("theirs", 9000, 2000, 3000)
	want :=
		"No limiter granted more than the limit allows. Some denied calls although they had granted less than 95 % of what was allowed: " +
			"theirs (75 %). Some were too slow to reach the limit, so they denied no call: ours for one key (50 %)."
	if got := strings.Join(strings.Fields(f.auditText()), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
