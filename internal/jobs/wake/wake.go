// Package wake remembers when jobs are due, and looks at their rows at that moment. Those who use
// it tell it when, and riverjob does the looking, which wakes River.
package wake

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// For is how long a job is looked for that cannot be seen yet, or that still runs.
	For = 2 * time.Second

	after     = 500 * time.Microsecond // the due time: a little late beats a look for nothing
	retry     = 5 * time.Millisecond   // before the second look for a job; then twice that
	gap       = 2 * time.Millisecond   // between two looks
	perSecond = 100                    // looks a second, and at once
	mostIDs   = 1000                   // jobs in one look
)

// Seen is how the row of a job stands.
type Seen struct {
	State string
	Wait  time.Duration // until it is due
}

// Waker looks at jobs when they are due. It has no goroutine of its own while it waits.
type Waker struct {
	look func(ids []int64) (map[int64]Seen, error)
	most int

	mu    sync.Mutex
	wakes map[int64]wake
	timer *time.Timer
	next  time.Time // the first of the wakes, for which the timer is set; zero if it is not
	last  time.Time
	left  float64 // looks that may be done now, as of last
	going bool
}

// wake is a job that will be due.
type wake struct {
	at    time.Time // by the program's clock
	pause time.Duration
	back  bool // it is being put off: its row may still say that it runs
}

// New returns a Waker that remembers so many jobs at most. look is called by one goroutine at a
// time. It returns how the rows of the jobs stand that it has found.
func New(look func(ids []int64) (map[int64]Seen, error), most int) *Waker {
	return &Waker{look: look, most: most}
}

// Len is how many jobs it remembers.
func (w *Waker) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wakes)
}

// Add remembers a job that will be due at an instant of the program's clock. If it is remembered
// for an earlier one, its row will tell. back says that the job runs, and is being put off.
func (w *Waker) Add(id int64, due time.Time, back bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := due.Add(after)
	known, ok := w.wakes[id]
	if ok && !at.Before(known.at) || !ok && len(w.wakes) >= w.most {
		return
	}
	if w.wakes == nil {
		w.wakes, w.timer = map[int64]wake{}, time.AfterFunc(time.Hour, w.run)
	}
	w.wakes[id] = wake{at, retry, back}
	if w.next.IsZero() || at.Before(w.next) { // else the timer comes in time: jobs come in thousands
		w.set()
	}
}

// set sets the timer to the next wake. The lock is held.
func (w *Waker) set() {
	w.next = time.Time{}
	if w.going || len(w.wakes) == 0 {
		return
	}
	pause := gap
	if w.left < 1 {
		pause = time.Second / perSecond
	}
	for _, k := range w.wakes {
		if w.next.IsZero() || k.at.Before(w.next) {
			w.next = k.at
		}
	}
	w.timer.Reset(max(time.Until(w.next), time.Until(w.last.Add(pause))))
}

// run looks at all whose time has come.
func (w *Waker) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, due := time.Now(), map[int64]wake{}
	for id, k := range w.wakes {
		if !w.going && !k.at.After(now) && len(due) < mostIDs {
			due[id] = k
			delete(w.wakes, id)
		}
	}
	if len(due) > 0 {
		w.left = min(perSecond, w.left+perSecond*now.Sub(w.last).Seconds()) - 1
		w.going, w.last = true, now
		w.mu.Unlock()
		rows, err := w.look(slices.Collect(maps.Keys(due)))
		w.mu.Lock()
		w.going = false
		for id, k := range due {
			row, found := rows[id]
			if _, ok := w.wakes[id]; err == nil && !ok && k.again(row, found) {
				w.wakes[id] = k
			}
		}
	}
	w.set()
}

// again decides whether a job is to be looked for again, and when.
func (k *wake) again(row Seen, found bool) bool {
	switch {
	case found && row.State == "available" && row.Wait > 0 && row.Wait < For:
		k.at = time.Now().Add(row.Wait + after)
	case !found, k.back && row.State == "running":
		// Its insert is not committed yet, or the put-off not written.
		k.at = time.Now().Add(k.pause)
		k.pause *= 2
	default:
		return false
	}
	return k.pause < For
}
