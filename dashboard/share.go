package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	fresh    = 900 * time.Millisecond // how long an answer is good for: pages ask once a second
	patience = 5 * time.Second        // that a reading may take
	// times as long as a reading took it is not made again, even if it failed: large tables are read
	// less often
	idle     = 10
	atOnce   = 2   // readings, each of which holds a connection
	mostKept = 256 // answers
)

// shared is what many viewers read together: each thing once a second, however many ask for it.
type shared struct {
	mu    sync.Mutex
	slots chan struct{}
	kept  map[string]*answer
	now   func() time.Time
}

// answer is one that is there when done is closed.
type answer struct {
	done  chan struct{}
	until time.Time // that it is good for; zero while it is being made
	body  []byte
	err   error
}

func newShared() *shared {
	return &shared{slots: make(chan struct{}, atOnce), kept: make(map[string]*answer),
		now: time.Now}
}

// get returns what read returns, or has returned to others lately. A viewer who leaves takes
// nothing from the others: read's context is its own.
func (s *shared) get(ctx context.Context, what string,
	read func(context.Context) ([]byte, error)) ([]byte, error) {
	s.mu.Lock()
	a := s.kept[what]
	if a != nil && (a.until.IsZero() || s.now().Before(a.until)) {
		s.mu.Unlock()
		select {
		case <-a.done:
			return a.body, a.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// unless it returns
	a = &answer{
		done: make(chan struct{}), err: errors.New("dashboard: reading ended without an answer"),
	}
	s.makeRoom()
	s.kept[what] = a
	s.mu.Unlock()

	var took time.Duration // a wait costs the database nothing
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.until = s.now().Add(max(fresh, took*idle))
		close(a.done)
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		began := s.now()
		defer func() {
			took = s.now().Sub(began)
			<-s.slots
		}()
		a.body, a.err = read(ctx)
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	return a.body, a.err
}

// makeRoom forgets answers that are no good any more, and if those are too few all others.
func (s *shared) makeRoom() {
	if len(s.kept) < mostKept {
		return
	}
	now := s.now()
	for _, all := range []bool{false, true} {
		for what, a := range s.kept {
			if !a.until.IsZero() && (all || !now.Before(a.until)) {
				delete(s.kept, what)
			}
		}
		if len(s.kept) < mostKept {
			return
		}
	}
}
