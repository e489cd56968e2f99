package scheduler

import (
	"sync"
	"time"
)

// batch does together what many ask for at the same time: what comes in while one round is under way is the next one.
type batch[T any] struct {
	do     func(items []*T) // writes the answers into the items
	settle time.Duration    // that a round waits for others

	mu    sync.Mutex
	next  []*T
	done  chan struct{} // closed when those in next have their answers
	going bool
}

// ask returns when the item has its answer.
func (b *batch[T]) ask(item *T) {
	b.mu.Lock()
	if b.done == nil {
		b.done = make(chan struct{})
	}
	b.next = append(b.next, item)
	done := b.done
	if !b.going {
		b.going = true
		go b.rounds()
	}
	b.mu.Unlock()
	<-done
}

func (b *batch[T]) rounds() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.next) > 0 {
		for n, tries := 0, 0; b.settle > 0 && n < len(b.next) && tries < 10; tries++ { // for as long as more come
			n = len(b.next)
			b.mu.Unlock()
			time.Sleep(b.settle)
			b.mu.Lock()
		}
		items, done := b.next, b.done
		b.next, b.done = nil, nil
		b.mu.Unlock()
		b.do(items)
		close(done)
		b.mu.Lock()
	}
	b.going = false
}
