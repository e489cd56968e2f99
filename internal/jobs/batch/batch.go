// Package batch does together what many callers ask for at the same time. What comes in while a
// round is under way is done in the next one, so callers wait for two rounds at most.
package batch

import (
	"slices"
	"sync"
	"time"
)

// Batch does things of one kind. It has no goroutine of its own: one of the callers does each
// round.
type Batch[T any] struct {
	do     func(items []T)
	settle time.Duration
	turn   chan struct{} // of one: the caller that does a round, for all

	mu   sync.Mutex
	next []entry[T]
}

type entry[T any] struct {
	item T
	done chan struct{} // closed after the round
}

// New returns a Batch whose rounds call do, which writes the answers into the items. A round waits
// for others for as long as more come within settle, and ten times settle at most.
func New[T any](do func(items []T), settle time.Duration) *Batch[T] {
	return &Batch[T]{do: do, settle: settle, turn: make(chan struct{}, 1)}
}

// Do returns when a round has done the item. A round that panics does so in the caller that does
// it. The items of the other callers come again in the next round.
func (b *Batch[T]) Do(item T) {
	own := entry[T]{item, make(chan struct{})}
	b.mu.Lock()
	b.next = append(b.next, own)
	b.mu.Unlock()
	select {
	case <-own.done:
		return
	case b.turn <- struct{}{}:
	}
	defer func() { <-b.turn }()
	entries := b.gather()
	defer func() { // if do panics, the next round does what the other callers wait for
		entries = slices.DeleteFunc(entries, func(e entry[T]) bool { return e.done == own.done })
		b.mu.Lock()
		b.next = append(entries, b.next...)
		b.mu.Unlock()
	}()
	items := make([]T, len(entries))
	for i, e := range entries {
		items[i] = e.item
	}
	if len(items) > 0 {
		b.do(items)
	}
	for _, e := range entries {
		close(e.done)
	}
	entries = nil
}

// gather returns what a round does.
func (b *Batch[T]) gather() []entry[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, tries := 0, 0; b.settle > 0 && n < len(b.next) && tries < 10; tries++ {
		n = len(b.next) // for as long as more come
		b.mu.Unlock()
		time.Sleep(b.settle)
		b.mu.Lock()
	}
	entries := b.next
	b.next = nil
	return entries
}
