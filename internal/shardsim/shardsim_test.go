package shardsim_test

import (
	"fmt"
	"testing"

	"github.com/weir-go/weir/internal/shardsim"
)

// These hold what docs/shards.md advises: twice as many shards as callers, and in each of them eight times the common count.

const (
	takes = 10_000
	ample = 8 * shardsim.MeanCount // of a shard
)

// crowds plays callers of one process, and of one each, for each load, and tells what became of it.
func crowds(t *testing.T, shards, callers int, loads []float64, check func(t *testing.T, r shardsim.Report)) {
	t.Helper()
	for _, processes := range []int{1, callers} {
		for _, load := range loads {
			t.Run(fmt.Sprintf("%d shards, %d callers, %d processes, load %v", shards, callers, processes, load), func(t *testing.T) {
				t.Parallel()
				check(t, shardsim.Play(shardsim.Crowd{
					Shards: shards, Callers: callers, Processes: processes, Capacity: ample * float64(shards), Load: load, Takes: takes, Seed: 1,
				}))
			})
		}
	}
}

func share(t *testing.T, what string, got, least, most float64) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %.4f of the takes, want %v to %v", what, got, least, most)
	}
}

func TestWithTwiceAsManyShardsAsCallersNobodyWaits(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{1, 4, 16, 64} {
		crowds(t, 2*callers, callers, []float64{0.5, 0.9, 0.99}, func(t *testing.T, r shardsim.Report) {
			t.Helper()
			share(t, "waited", r.Share(r.Met), 0, 0.01)
		})
	}
}

func TestWithHalfAsManyShardsAsCallersHalfOfThemWait(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{4, 16, 64} {
		crowds(t, callers/2, callers, []float64{0.5, 0.9, 0.99}, func(t *testing.T, r shardsim.Report) {
			t.Helper()
			share(t, "waited", r.Share(r.Met), 0.35, 1)
		})
	}
}

func TestShardsOfEightCountsAreSeldomLookedAt(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{4, 16, 64} {
		crowds(t, 2*callers, callers, []float64{0.5, 0.9}, func(t *testing.T, r shardsim.Report) {
			t.Helper()
			share(t, "looked", r.Share(r.Looked), 0, 0.03)
			share(t, "denied", r.Share(r.Denied), 0, 0.01)
		})
	}
}

func TestProcessesLookAtShardsOfTwoCountsOften(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{4, 16, 64} {
		r := shardsim.Play(shardsim.Crowd{
			Shards: 2 * callers, Callers: callers, Processes: callers, Capacity: 2 * shardsim.MeanCount * 2 * float64(callers), Load: 0.9, Takes: takes, Seed: 1,
		})
		share(t, "looked", r.Share(r.Looked), 0.1, 1)
		share(t, "blind", r.Share(r.Blind), 0.1, 1)
	}
}

// And it is denied nothing by a shard alone.
func TestALoneCallerMeetsNobody(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 4, 16, 64} {
		crowds(t, shards, 1, []float64{0.5, 0.9, 0.99}, func(t *testing.T, r shardsim.Report) {
			t.Helper()
			share(t, "waited", r.Share(r.Met), 0, 0)
			if r.Looked < r.Denied+r.Gather {
				t.Errorf("%+v: denied or gathered without a look", r)
			}
		})
	}
}

func TestACrowdAlwaysDoesTheSame(t *testing.T) {
	t.Parallel()
	c := shardsim.Crowd{Shards: 32, Callers: 16, Processes: 4, Capacity: 320, Load: 0.9, Takes: takes, Seed: 7}
	if a, b := shardsim.Play(c), shardsim.Play(c); a != b {
		t.Errorf("%+v, and then %+v", a, b)
	}
}

// No more is granted than there was and has come: the simulation itself is sound.
func TestNoMoreIsGrantedThanThereIs(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{1, 16} {
		crowds(t, 8, callers, []float64{0.5, 0.99, 2}, func(t *testing.T, r shardsim.Report) {
			t.Helper()
			if r.Taken > r.Most {
				t.Errorf("%v tokens were granted, and there were %v", r.Taken, r.Most)
			}
			if r.Takes != takes {
				t.Errorf("%+v", r)
			}
		})
	}
}
