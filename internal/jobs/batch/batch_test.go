package batch_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/jobs/batch"
)

// What comes while a round is under way is done in one round after it, each item once.
func TestWhatComesDuringARoundIsTheNextOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		var sizes []int
		b := batch.New(func(items []*int) {
			<-end
			sizes = append(sizes, len(items))
			for _, n := range items {
				*n++
			}
		}, 0)
		done := make([]int, 20)
		go b.Do(&done[0])
		synctest.Wait()
		for i := range done[1:] {
			go b.Do(&done[1+i])
		}
		synctest.Wait()
		close(end)
		synctest.Wait()
		if slices.Min(done) != 1 || slices.Max(done) != 1 || !slices.Equal(sizes, []int{1, 19}) {
			t.Errorf("done %v times, in rounds of %v; want once, in rounds of 1 and 19", done, sizes)
		}
	})
}

// A round waits for as long as others come within settle, and ten times that at most.
func TestARoundWaitsForOthers(t *testing.T) {
	t.Parallel()
	const settle = time.Millisecond
	for _, c := range []struct {
		come  int // one after another, 0.3 times settle apart
		sizes []int
	}{{1, []int{1}}, {5, []int{5}}, {40, []int{34, 6}}} {
		synctest.Test(t, func(t *testing.T) {
			var sizes []int
			b := batch.New(func(items []int) { sizes = append(sizes, len(items)) }, settle)
			for i := range c.come {
				time.AfterFunc(time.Duration(i)*settle*3/10, func() { b.Do(i) })
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if !slices.Equal(sizes, c.sizes) {
				t.Errorf("%d came, in rounds of %v; want %v", c.come, sizes, c.sizes)
			}
		})
	}
}

// A panic is that of the caller that does the round. The others are not told that their items were
// done: one of them does the next round.
func TestAPanicLeavesTheOthersToTheNextRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		rounds := 0
		b := batch.New(func(items []*int) {
			<-end
			if rounds++; rounds == 2 {
				panic("once")
			}
			for _, n := range items {
				*n++
			}
		}, 0)
		done, panics := make([]int, 20), 0
		do := func(n *int) {
			defer func() {
				if recover() != nil {
					panics++
					*n++ // and nobody else does it
				} else if *n != 1 {
					t.Errorf("an item was done %d times when its caller went on, want once", *n)
				}
			}()
			b.Do(n)
		}
		go do(&done[0])
		synctest.Wait()
		for i := range done[1:] {
			go do(&done[1+i])
		}
		synctest.Wait()
		close(end)
		synctest.Wait()
		if slices.Min(done) != 1 || slices.Max(done) != 1 || panics != 1 || rounds != 3 {
			t.Errorf("done %v times in %d rounds, and %d panics; want once, in 3 rounds, and one",
				done, rounds, panics)
		}
	})
}
