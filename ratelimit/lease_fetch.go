package ratelimit

import (
	"context"
	"math"
	"slices"
	"time"
)

const (
	// blockLasts is the time for which a block should be enough.
	blockLasts = 100 * time.Millisecond

	// patience is how long a fetch may take if no take waits for it.
	patience = 5 * time.Second
)

// taker is a take that waits: it has got what the hand had, and the rest is missing.
type taker struct {
	n       float64
	got     []chunk
	missing float64

	done chan struct{} // closed when the answer is there
	res  Result
	err  error
}

// flight is a fetch from the database, for takes that wait and for later ones.
type flight struct {
	timer  *time.Timer // cancels the fetch if no take waits for it
	batch  []*taker
	need   float64 // what the batch lacks
	beyond float64 // wanted in addition, as far as it is there
	unit   float64 // beyond is in multiples of it
}

// wait is Take where the first block in hand is not enough.
func (s *Lease) wait(ctx context.Context, n float64) (Result, error) {
	if err := s.check(n); err != nil {
		return Result{}, err
	}
	w, res, err := s.queue(ctx, n)
	if w == nil {
		return res, err
	}
	var late <-chan time.Time
	if d := s.l.patience(ctx); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-w.done:
		return w.res, w.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-late:
		err = s.l.errTimeout(context.DeadlineExceeded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.waits(w) { // answered meanwhile
		return w.res, w.err
	}
	s.answer(w, Result{}, nil) // the caller has gone
	s.giveBackSoon()
	s.graceful(s.flight)
	return Result{}, explain(ctx, err, "take", s.calls)
}

// queue takes from the hand, or queues up for the next block.
func (s *Lease) queue(ctx context.Context, n float64) (*taker, Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if res, _, ok, err := s.try(n, false); ok || err != nil {
		return nil, res, err
	}
	if nested(ctx, s.a.pool) {
		return nil, Result{}, errNested
	}
	if err := ctx.Err(); err != nil {
		return nil, Result{}, explain(ctx, err, "take", s.calls)
	}
	w := &taker{n: n, missing: n, done: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	if s.flight == nil {
		s.fetch()
	}
	return w, Result{}, nil
}

// try answers without the database if it can: then ok is true. took lists what it has taken. With
// whole, the row must have all of n, and not only what the hand lacks.
func (s *Lease) try(n float64, whole bool) (res Result, took []chunk, ok bool, err error) {
	if s.closed {
		return Result{}, nil, false, s.errClosed()
	}
	now := s.now()
	s.sweep(now)
	s.giveBackSoon()
	s.unit = n
	if len(s.waiting) > 0 {
		return Result{}, nil, false, nil
	}
	lacks := n - s.inHand()
	switch {
	case lacks <= 0:
		res = s.hand[0].granted(now)
		took, _ = s.gather(n, now)
		s.fetch()
		return res, took, true, nil
	case whole:
		lacks = n
	}
	res, ok = s.refused(lacks, now)
	return res, nil, ok, nil
}

// answer ends the wait of a take. Without a grant, what it has got goes back into the hand.
func (s *Lease) answer(w *taker, res Result, err error) {
	s.waiting = slices.DeleteFunc(s.waiting, func(other *taker) bool { return other == w })
	if !res.OK {
		s.putBack(w.got, s.now())
	}
	w.got, w.res, w.err = nil, res, err
	close(w.done)
}

// graceful lets a fetch be cancelled if it takes too long and nobody waits for it.
func (s *Lease) graceful(f *flight) {
	if f != nil && f.timer != nil && len(s.waiting) == 0 {
		f.timer.Reset(patience)
	}
}

// fetch fetches blocks in the background, unless that is under way, until plan says that none is
// needed. Call sweep first.
func (s *Lease) fetch() {
	if s.flight != nil {
		return
	}
	f := s.plan()
	if f == nil {
		return
	}
	s.flight = f
	s.busy++
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for ; f != nil; f = s.plan() {
			s.flight = f
			s.round(f)
		}
		s.flight = nil
		s.giveBackSoon()
		s.done()
	}()
}

// done is called as a goroutine ends.
func (s *Lease) done() {
	if s.busy--; s.busy == 0 && s.quiet != nil {
		close(s.quiet)
		s.quiet = nil
	}
}

// plan answers the waiting takes as far as the hand and the last denial allow, and returns the next
// fetch; nil for none.
//
// The first waiting take gets what is in hand. A fetch is for as many waiting takes as fit into one
// block. Its size is what was used since the last fetch, scaled to blockLasts. What is still being
// given back counts as held, so that a crash never loses more than one block.
func (s *Lease) plan() *flight {
	now := s.now()
	s.sweep(now)
	for len(s.waiting) > 0 {
		w := s.waiting[0]
		chunks, missing := s.gather(w.missing, now)
		w.got, w.missing = append(w.got, chunks...), missing
		if missing <= 0 {
			s.answer(w, Result{OK: true, At: w.got[len(w.got)-1].b.granted(now).At}, nil)
			continue
		}
		w.missing = max(missing, s.least) // of fractions there may be left what cannot be taken
		res, ok := s.refused(w.missing, now)
		if !ok {
			break
		}
		s.answer(w, res, nil)
	}
	if s.closed {
		return nil
	}

	size := 0.0
	if s.last != 0 {
		for _, w := range s.waiting {
			s.used += w.missing
		}
		leaving := leftOf(s.back) + leftOf(s.returning)
		size = min(s.most-leaving, s.used*float64(blockLasts)/float64(max(1, now-s.last)))
	}
	f := &flight{unit: s.unit}
	if len(s.waiting) > 0 {
		total := s.waiting[0].n
		f.batch, f.need = []*taker{s.waiting[0]}, s.waiting[0].missing
		for _, w := range s.waiting[1:] {
			if total+w.n > s.most {
				break
			}
			total += w.n
			f.batch, f.need = append(f.batch, w), f.need+w.n
		}
		f.beyond = f.whole(size - total)
		size = max(size, total)
	} else {
		if now < s.calm || s.inHand() >= max(s.low, s.unit) {
			return nil
		}
		if f.beyond = f.whole(size - s.inHand()); f.beyond <= 0 {
			s.calm = now + int64(blockLasts)
			return nil
		}
	}
	s.last, s.used, s.low = now, 0, size/2
	return f
}

// whole returns the largest multiple of unit up to n.
func (f *flight) whole(n float64) float64 {
	if !(n >= f.unit) || !(f.unit > 0) {
		return 0
	}
	return math.Floor(n/f.unit) * f.unit
}

// round makes one fetch. It holds the lock, except during the round trip.
func (s *Lease) round(f *flight) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.timer = time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.waiting) == 0 {
			cancel()
		}
	})
	s.mu.Unlock()
	res, sent, err := s.ask(ctx, f)
	s.mu.Lock()
	f.timer.Stop()
	f.timer = nil
	now := s.now()
	switch {
	case err != nil:
		s.calm = now + int64(blockLasts)
		for _, w := range f.batch {
			if s.waits(w) {
				s.answer(w, Result{}, err)
			}
		}
	case res.OK:
		s.denied = refusal{}
		s.arrive(f, res, sent, now)
	default:
		o := &res.Outcomes[0]
		s.denied = refusal{n: o.call.Count, retryAt: res.RetryAt.UnixMicro(), value: o.Value,
			at: res.At.UnixMicro(), paused: o.paused, told: now}
		s.calm = now + int64(blockLasts)
	}
}

func (s *Lease) waits(w *taker) bool { return slices.Contains(s.waiting, w) }

// ask takes the tokens that a fetch wants. If the row has less, it takes what there is, as long as
// that is enough for the first take that waits. It runs without the lock.
func (s *Lease) ask(ctx context.Context, f *flight) (res Result, sent int64, err error) {
	batch, need, beyond := f.batch, f.need, f.beyond
	for range rounds {
		sent = s.before()
		n := min(need+beyond, max(need, s.most)) // the sum may be rounded up
		res, err = s.a.rateLimit(ctx, nil, s.request.Count(n))
		if err != nil || res.OK {
			return res, sent, err
		}
		there := res.Outcomes[0].Value
		switch {
		case len(batch) <= 1 && beyond == 0:
			return res, sent, nil
		case there >= need:
			beyond = f.whole(min(beyond, there-need))
		default:
			beyond = 0
			for len(batch) > 1 && need > there {
				need -= batch[len(batch)-1].n
				batch = batch[:len(batch)-1]
			}
			if len(batch) == 1 {
				need = batch[0].missing
			}
		}
		if need+beyond <= 0 {
			return res, sent, nil
		}
	}
	if len(batch) == 0 {
		return res, sent, nil
	}
	sent = s.before()
	res, err = s.a.rateLimit(ctx, nil, s.request.Count(batch[0].missing))
	return res, sent, err
}

// arrive answers the takes that a fetch was made for, as of the time of the take, and keeps the
// rest in hand.
func (s *Lease) arrive(f *flight, res Result, sent, now int64) {
	blocks := s.blocks(res, sent)
	there := res.Outcomes[0].call.Count
	if w := f.batch; len(w) > 0 && s.waits(w[0]) && len(w[0].got) > 0 {
		first := w[0] // some of what it has got may have expired while it waited
		s.putBack(first.got, now)
		first.got, first.missing = s.gather(first.n, now)
	}
	for _, w := range f.batch {
		if w.missing > there {
			break
		}
		if !s.waits(w) {
			continue
		}
		there -= w.missing
		n := w.missing
		for _, b := range blocks {
			x := min(n, b.Left)
			b.Left -= x
			n -= x
		}
		s.answer(w, Result{OK: true, At: res.At}, nil)
	}
	s.hand = append(s.hand, blocks...)
	s.sweep(now)
	if s.closed {
		s.back = append(s.back, s.hand...)
		s.hand, s.rest = nil, 0
	}
	s.arm(now)
}

// blocks returns one block for each row that a granted call took from.
func (s *Lease) blocks(res Result, sent int64) []*block {
	rows := res.Outcomes[0].changes()
	blocks := make([]*block, len(rows))
	for k, r := range rows {
		value, at := r.after.Value, r.after.TS
		if !r.after.Exists { // the only row
			value, at = -r.Owed, res.At.UnixMicro()
		}
		blocks[k] = newBlock(r.receipt, value, at, sent)
	}
	return blocks
}
