package shard_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/shard"
)

// inTurn draws the given numbers.
func inTurn(numbers ...int) func(int) int {
	return func(n int) int {
		x := numbers[0] % n
		numbers = append(numbers[1:], numbers[0])
		return x
	}
}

// choose asks for two tokens.
func choose(own int, views []shard.View, random func(int) int) []int {
	chosen, _ := shard.Choose(len(views), own, 2, 0, func(i int) shard.View { return views[i] }, random)
	return chosen
}

func TestAConnectionStaysWithItsShard(t *testing.T) {
	t.Parallel()
	views := func(own, other float64, busy bool) []shard.View {
		return []shard.View{{Tokens: other}, {Tokens: own, Busy: busy}, {Tokens: other}}
	}
	for _, tc := range []struct {
		name  string
		views []shard.View
		stays bool
	}{
		{"enough", views(5, 5, false), true},
		{"enough, and others have twice as much", views(5, 10, false), true},
		{"enough, but others have more than twice as much", views(5, 10.5, false), false},
		{"enough, but others have come between", views(5, 5, true), false},
		{"too little", views(1.9, 3, false), false},
		{"none has enough", views(1, 1, false), false},
	} {
		got := choose(1, tc.views, inTurn(0, 2, 1))
		if stays := slices.Equal(got, []int{1}); stays != tc.stays {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	full := []shard.View{{Tokens: 20, Busy: true}, {Tokens: 5}, {Tokens: 20, Busy: true}}
	if got := choose(1, full, inTurn(0, 2)); !slices.Equal(got, []int{1}) {
		t.Errorf("for others that are busy: %v", got)
	}
}

// In debt a connection keeps to its shard as well, but other processes take from it, too. So others
// follow, in case one of them holds it.
func TestAConnectionInDebtTriesOthersAfterItsShard(t *testing.T) {
	t.Parallel()
	views := make([]shard.View, 20)
	at := func(i int) shard.View { return views[i] }
	for _, tc := range []struct {
		tokens float64
		others int
	}{{2, 0}, {1.9, 7}, {0, 7}, {-50, 7}} {
		for i := range views {
			views[i].Tokens = tc.tokens
		}
		got, enough := shard.Choose(len(views), 3, 2, -100, at, rand.IntN)
		if len(got) != 1+tc.others || got[0] != 3 || slices.Contains(got[1:], 3) || enough != len(views) {
			t.Errorf("with %v tokens: %v of %d", tc.tokens, got, enough)
		}
	}
}

func TestTheBetterOfTwoGoesFirst(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		views []shard.View
		want  int
	}{
		{"the fuller", []shard.View{{Tokens: 5}, {Tokens: 6}}, 1},
		{"the one that is free", []shard.View{{Tokens: 5}, {Tokens: 6, Busy: true}}, 0},
		{"the only one that has enough", []shard.View{{Tokens: 5, Busy: true}, {Tokens: 1}}, 0},
	} {
		for _, random := range [][]int{{0, 0}, {1, 0}} { // whichever is drawn first
			if got := choose(-1, tc.views, inTurn(random...)); got[0] != tc.want {
				t.Errorf("%s: %v", tc.name, got)
			}
		}
	}
}

func TestTheBestOfThreeGoesFirst(t *testing.T) {
	t.Parallel()
	views := []shard.View{{Tokens: 5}, {Tokens: 9}, {Tokens: 6}, {Tokens: 8}}
	count := make([]int, len(views))
	for seed := range uint64(4000) {
		count[choose(-1, views, rand.New(rand.NewPCG(seed, 1)).IntN)[0]]++
	}
	// Of three draws, each unlike the best one so far, only the worst is never the best.
	if count[0] != 0 || count[1] < 2000 || count[2] > 700 {
		t.Errorf("%v", count)
	}
}

// Only shards that are known to have enough are chosen, each once, and as many as there are up to
// eight.
func TestCandidatesHaveEnough(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		views := make([]shard.View, n)
		enough := 0
		for i := range views {
			views[i] = shard.View{Tokens: float64(rapid.IntRange(-3, 5).Draw(t, "tokens")),
				Busy: rapid.Bool().Draw(t, "busy")}
			if views[i].Tokens >= 2 {
				enough++
			}
		}
		own := rapid.IntRange(-1, n).Draw(t, "own")
		got := choose(own, views, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "random") })
		if len(got) != min(enough, 8) && !slices.Equal(got, []int{own}) {
			t.Fatalf("%v of %d that have enough", got, enough)
		}
		for i, s := range got {
			if views[s].Tokens < 2 || slices.Contains(got[:i], s) {
				t.Fatalf("%v of %v", got, views)
			}
		}
	})
}
