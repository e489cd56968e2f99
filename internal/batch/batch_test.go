package batch_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/batch"
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
