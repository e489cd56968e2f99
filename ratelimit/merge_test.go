package ratelimit

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	apples = MustDefine("apples", TokenBucket{Rate: 10, Period: time.Minute})
	pears  = MustDefine("pears", FixedWindow{Rate: 10, Period: time.Minute})
)

func resolved(t *testing.T, requests ...Request) []call {
	t.Helper()
	calls, err := resolveAll(requests)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

func TestRequestsForOneBalanceAreAddedUp(t *testing.T) {
	t.Parallel()
	calls := resolved(t, pears.For("x").Count(2), apples.For("x").Count(3), pears.For("x").Count(5), pears.For("y"))
	type short struct {
		name, key string
		count     float64
	}
	var got []short
	var indexes [][]int
	for _, c := range calls {
		got = append(got, short{c.Name, c.Key, c.Count})
		indexes = append(indexes, c.indexes)
	}
	if want := []short{{"apples", "x", 3}, {"pears", "x", 7}, {"pears", "y", 1}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if want := [][]int{{1}, {0, 2}, {3}}; !slices.EqualFunc(indexes, want, slices.Equal) {
		t.Errorf("%v, want %v", indexes, want)
	}
}

// The sum of what two requests may each ask for is checked like one count.
func TestSumOfCountsIsCheckedLikeOneCount(t *testing.T) {
	t.Parallel()
	if _, err := resolveAll([]Request{apples.For("x").Count(5), apples.For("x").Count(5)}); err != nil {
		t.Errorf("the whole capacity in two parts: %v", err)
	}
	if _, err := resolveAll([]Request{apples.For("x").Count(5),
		apples.For("x").Count(5.5)}); !errors.Is(err, ErrNeverGranted) {
		t.Errorf("more than the capacity in two parts: %v", err)
	}
	bounded := apples.For("x").OrReserve().Rule(TokenBucket{Rate: 10, Period: time.Minute, MaxReserved: Tokens(2)})
	if _, err := resolveAll([]Request{bounded.Count(6), bounded.Count(6)}); err != nil {
		t.Errorf("capacity and MaxReserved in two parts: %v", err)
	}
	if _, err := resolveAll([]Request{bounded.Count(6), bounded.Count(6), bounded}); !errors.Is(err, ErrNeverGranted) {
		t.Errorf("more than both in three parts: %v", err)
	}
}

func TestRequestsForOneBalanceMustAgree(t *testing.T) {
	t.Parallel()
	for name, requests := range map[string][]Request{
		"rate":      {apples.For("x"), apples.For("x").Rule(TokenBucket{Rate: 11, Period: time.Minute})},
		"kind":      {apples.For("x"), apples.For("x").Rule(FixedWindow{Rate: 10, Period: time.Minute})},
		"capacity":  {apples.For("x"), apples.For("x").Rule(TokenBucket{Rate: 10, Period: time.Minute, Capacity: Tokens(11)})},
		"start":     {pears.For("x"), pears.For("x").Rule(FixedWindow{Rate: 10, Period: time.Minute, Start: time.UnixMicro(noon)})},
		"OrReserve": {apples.For("x"), pears.For("x"), apples.For("x").OrReserve()},
		"Within":    {apples.For("x").Within(time.Second), apples.For("x").Within(time.Minute)},
		"OnCredit":  {apples.For("x").OrReserve(), apples.For("x").OrReserve().OnCredit()},
		"Leave":     {apples.For("x").Leave(1), apples.For("x").Leave(2)},
		"bounds":    {apples.For("x").OrReserve(), apples.For("x").Within(0)},
	} {
		for range 2 {
			var invalid *InvalidError
			if _, err := resolveAll(requests); !errors.As(err, &invalid) ||
				invalid.Field != "requests" || invalid.never {
				t.Errorf("%s differs: %v", name, err)
			}
			slices.Reverse(requests)
		}
	}
	// Rules that mean the same agree, however they are written.
	calls := resolved(t, apples.For("x"),
		apples.For("x").Rule(&TokenBucket{Rate: 10, Period: time.Minute, Capacity: Tokens(10)}))
	if len(calls) != 1 || calls[0].Count != 2 {
		t.Errorf("%+v", calls)
	}
}

func TestKeylessBalanceIsOfItsOwn(t *testing.T) {
	t.Parallel()
	if calls := resolved(t, apples.Global(), apples.For("x")); len(calls) != 2 {
		t.Errorf("%+v", calls)
	}
	if calls := resolved(t, apples.Global(), apples.Global()); len(calls) != 1 || calls[0].Count != 2 {
		t.Errorf("%+v", calls)
	}
}

// Rows are locked in the order of the calls, so it must not depend on that of the requests; and
// each request must find its outcome again.
func TestOrderOfRowsDoesNotDependOnTheOrderOfRequests(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var requests []Request
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			l := rapid.SampledFrom([]Limit{apples, pears,
				MustDefine("apples2", TokenBucket{Rate: 10, Period: time.Minute})}).Draw(t, "limit")
			r := l.For(rapid.SampledFrom([]string{"a", "B", "é", "a\x01", "ab", "-"}).Draw(t, "key"))
			if rapid.IntRange(0, 5).Draw(t, "global") == 0 {
				r = l.Global()
			}
			requests = append(requests, r.Count(float64(rapid.IntRange(0, 6).Draw(t, "eighths"))/8))
		}
		calls, err := resolveAll(requests)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(calls, func(a, b call) int {
			if a.Name < b.Name || a.Name == b.Name && a.Key < b.Key {
				return -1
			}
			return 1 // no two are alike
		}) {
			t.Fatalf("not in strict order: %+v", calls)
		}
		seen := make([]bool, len(requests))
		for _, c := range calls {
			sum := 0.0
			for _, i := range c.indexes {
				if seen[i] || requests[i].def.name != c.Name || requests[i].key != c.Key {
					t.Fatalf("request %d is in %+v", i, c)
				}
				seen[i], sum = true, sum+requests[i].count
			}
			if sum != c.Count {
				t.Fatalf("%+v: counts add up to %v", c, sum)
			}
		}
		if slices.Contains(seen, false) {
			t.Fatalf("lost a request: %v", seen)
		}

		order := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)).Perm(len(requests))
		shuffled := make([]Request, len(requests))
		for i, j := range order {
			shuffled[i] = requests[j]
		}
		again, err := resolveAll(shuffled)
		if err != nil || !slices.EqualFunc(calls, again, func(a, b call) bool {
			return a.Row == b.Row && a.Count == b.Count
		}) {
			t.Fatalf("%+v, shuffled %+v, %v", calls, again, err)
		}
	})
}

// A change of plan must not reset what was used: the rule has no part in the row's identity.
func TestRowDoesNotDependOnTheRule(t *testing.T) {
	t.Parallel()
	r := apples.For("x")
	want := resolved(t, r)[0].Row
	for _, rule := range []Rule{
		TokenBucket{Rate: 100, Period: time.Hour, Capacity: Tokens(7), MaxReserved: Tokens(3)},
		FixedWindow{Rate: 1, Period: time.Second},
		FixedWindow{Rate: 1, Period: time.Second, Start: time.UnixMicro(noon)},
	} {
		for _, r := range []Request{r.Rule(rule), r.Rule(rule).OrReserve(),
			MustDefine("apples", rule).For("x").Count(0.5)} {
			if got := resolved(t, r)[0].Row; got != want {
				t.Errorf("%+v: %+v, want %+v", rule, got, want)
			}
		}
	}
}

// FuzzRequests resolves two requests: either an error that matches ErrInvalid, or calls that are
// sorted and add up.
func FuzzRequests(f *testing.F) {
	f.Add("user:7", 1.0, false, "user:8", 2.0, true)
	f.Add("k", 0.1, true, "k", 0.2, true)
	f.Add("k", 6.0, false, "k", 6.0, false)
	f.Add("", -1.0, false, "\x00", 1e300, true)
	f.Add("\xff", 5e-324, false, "日本", 0.0, true)
	f.Fuzz(func(t *testing.T, key1 string, n1 float64, reserve1 bool, key2 string, n2 float64, reserve2 bool) {
		a, b := pears.For(key1).Count(n1), pears.For(key2).Count(n2)
		if reserve1 {
			a = a.OrReserve()
		}
		if reserve2 {
			b = b.OrReserve()
		}
		calls, err := resolveAll([]Request{a, b})
		if err != nil {
			if !errors.Is(err, ErrInvalid) || err.Error() == "" {
				t.Fatal(err)
			}
			return
		}
		sum, indexes := 0.0, 0
		for _, c := range calls {
			if !(c.Count >= 0) || c.Capacity-c.Count < c.Least() {
				t.Fatalf("%+v can never be granted", c)
			}
			sum, indexes = sum+c.Count, indexes+len(c.indexes)
		}
		if sum != n1+n2 || indexes != 2 || (len(calls) == 1) != (key1 == key2) {
			t.Fatalf("%v %v: %+v", n1, n2, calls)
		}
		if len(calls) == 2 && calls[0].Key >= calls[1].Key {
			t.Fatalf("not sorted: %+v", calls)
		}
	})
}
