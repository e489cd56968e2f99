package rounds

import (
	"testing"
	"time"

	"github.com/weir-go/weir/internal/jobs/riverjob"
)

// A look for jobs that were cancelled passes over all those of the time for which it looks back. So
// that is a day only until all of these are known.
func TestALookForCancelledJobsLooksBackForAnHourOnceTheOthersAreKnown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := New(nil) // none of the jobs has anything to give back
	r.watch.from = now.Add(-lookBack)
	look := func(found []*riverjob.Waiter, from time.Time, id int64) {
		t.Helper()
		r.watch.last = time.Time{}
		clock := riverjob.Clock{At: now, Answered: now}
		if err := r.findGone(t.Context(), nil, found, clock); err != nil {
			t.Fatal(err)
		}
		if w := r.watch; !w.from.Equal(from) || w.id != id {
			t.Errorf("it looks from %v and %d on, want %v and %d", w.from, w.id, from, id)
		}
	}
	page := make([]*riverjob.Waiter, mostFound)
	for i := range page {
		page[i] = &riverjob.Waiter{ID: int64(i), At: now.Add(-20 * time.Hour)}
	}
	look(page, now.Add(-20*time.Hour), mostFound-1) // there may be more
	look(page[:1], now.Add(-lookAgain), 0)
	look(nil, now.Add(-lookAgain), 0)
}

// Of more jobs than are remembered, cancelled together, those behind are found all the same.
func TestALookForCancelledJobsGoesOnBehindAllThatItRemembers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := New(nil)
	r.watch.from = now.Add(-lookAgain)
	page := make([]*riverjob.Waiter, mostFound)
	for n := range mostGone/mostFound + 2 {
		r.watch.last = time.Time{}
		for i := range page {
			page[i] = &riverjob.Waiter{ID: int64(n*mostFound + i), At: now}
		}
		if err := r.findGone(t.Context(), nil, page, riverjob.Clock{At: now, Answered: now}); err != nil {
			t.Fatal(err)
		}
	}
	if w := r.watch; !w.from.Equal(now) || w.id < mostGone || len(w.known) > mostGone {
		t.Errorf("it looks from %v and %d on, and remembers %d", w.from, w.id, len(w.known))
	}
}
