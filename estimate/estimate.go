// Package estimate learns from earlier calls how much to reserve for the next one.
//
// Tokens are taken before a call, when nobody knows yet how many it will use. If you reserve too
// many, other callers wait for tokens that are never used. If you reserve too few, the debt comes
// later. A [Quantiles] keeps the last usages of each key (a model, a tenant, a template of a
// prompt) and answers with a quantile of them:
//
//	usage, err := estimate.New(estimate.Config{}) // one for the whole program
//
//	n := usage.Next("gpt-4o/summarize", 1200) // 1200, until enough is known of the key
//	in, err := jobs.InsertTx(ctx, tx, Summarize{ID: id}, nil, ChatTokens.For(org).Count(n).OrReserve())
//
//	usage.Observe("gpt-4o/summarize", float64(answer.Usage.TotalTokens)) // when the call has been made
//
// No other package of Weir uses this one.
//
// # The quantile
//
// Sort a key's last n usages in ascending order. The estimate for the quantile p is the one of
// nearest rank, k = ⌈p·n⌉: the first usage at which the share k/n is at least p. Hyndman and Fan
// call it definition 1, the inverse of the empirical distribution function (Sample Quantiles in
// Statistical Packages, The American Statistician 50, 1996), and Postgres percentile_disc. It is
// exact, and always a usage that was seen. While calls go on as they did, about a share p of them
// uses no more than was estimated.
//
// The window slides, so that the estimate follows what changes. With the defaults, if all calls of
// a key begin to use more than any before, the estimate is one of the new usages after 11 calls. If
// all use less, that takes 90. After 100 calls nothing older counts. The window counts calls, not
// time: an idle key keeps its estimate.
//
// # What to know
//
// Estimates are in the memory of the process, and in no table: each process learns by itself, and
// forgets when it ends. The process that asks for estimates must be the one that observes. A web
// server that reserves for workers in another process learns nothing: save what calls have used,
// and ask your own table for the quantile.
//
// Do not cut calls off at their estimate, for example with the API's maximum of tokens: then no
// usage is above the estimate, and it can only fall. Observe only calls that have completed. And
// observe outside of a transaction: nothing rolls it back, and if the transaction runs again it
// would count twice.
//
// An estimate does not know the limit. If it may be more than the limit can grant, which is refused
// with [ratelimit.ErrNeverGranted], ask for min(n, capacity).
package estimate

import (
	"container/list"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/weir-go/weir/ratelimit"
)

// Config configures [New]. The zero Config uses the defaults.
type Config struct {
	// Quantile is the share of calls that should use no more than was estimated, above 0 and at
	// most 1, which is the largest usage of the window. Default: 0.9.
	Quantile float64

	// Window is how many of a key's usages are remembered, the latest ones: at most 10,000. The
	// more, the steadier the estimate; the fewer, the sooner it follows. Default: 100.
	Window int

	// MinObservations is how many usages of a key must be remembered for an estimate: at most the
	// Window. Default: 10, or the Window if that is less.
	MinObservations int

	// MaxKeys is how many keys are remembered. Beyond that, the key is forgotten that was not used,
	// by Next or Observe, for the longest time. A key takes 16 bytes of memory times the Window,
	// and some 400 more besides its own length: with the defaults 10,000 short keys take 20 MB.
	// Default: 10,000.
	MaxKeys int
}

const maxWindow = 10_000

// Quantiles estimates usage, for each key by a quantile of its last usages. It is made by [New],
// safe for concurrent use, and of bounded memory. A nil or zero Quantiles is switched off: it
// observes nothing, and its Next returns the guess.
type Quantiles struct {
	cfg Config

	mu     sync.Mutex
	keys   map[string]*list.Element
	recent list.List // of *series, the one that was used last in front
}

// New makes a Quantiles that knows nothing yet. Its error matches [ratelimit.ErrInvalid], and says
// which field of the Config is wrong.
func New(cfg Config) (*Quantiles, error) {
	invalid := func(field string, value any, want string) (*Quantiles, error) {
		return nil, &ratelimit.InvalidError{Field: "estimate.Config." + field, Value: value,
			Want: want}
	}
	if !(cfg.Quantile >= 0 && cfg.Quantile <= 1) { // NaN is neither
		return invalid("Quantile", cfg.Quantile,
			"a share above 0 and at most 1, or 0 for the default of 0.9")
	}
	if cfg.Quantile == 0 {
		cfg.Quantile = 0.9
	}
	if cfg.Window < 0 || cfg.Window > maxWindow {
		return invalid("Window", cfg.Window,
			"a number from 1 to 10000, or 0 for the default of 100")
	}
	if cfg.Window == 0 {
		cfg.Window = 100
	}
	if cfg.MinObservations < 0 || cfg.MinObservations > cfg.Window {
		return invalid("MinObservations", cfg.MinObservations,
			"a number from 1 to the Window, or 0 for the default of 10")
	}
	if cfg.MinObservations == 0 {
		cfg.MinObservations = min(10, cfg.Window)
	}
	if cfg.MaxKeys < 0 {
		return invalid("MaxKeys", cfg.MaxKeys, "a number above 0, or 0 for the default of 10000")
	}
	if cfg.MaxKeys == 0 {
		cfg.MaxKeys = 10_000
	}
	return &Quantiles{cfg: cfg, keys: make(map[string]*list.Element)}, nil
}

// Next estimates what the next call of the key will use. While fewer than MinObservations of the
// key's usages are remembered it returns guess, the caller's own estimate, as it is.
func (q *Quantiles) Next(key string, guess float64) float64 {
	if q == nil {
		return guess
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.keys[key]
	if !ok {
		return guess
	}
	q.recent.MoveToFront(e)
	if s := e.Value.(*series); len(s.sorted) >= q.cfg.MinObservations {
		return s.sorted[rank(q.cfg.Quantile, len(s.sorted))-1]
	}
	return guess
}

// Observe remembers what a call of the key has used, 0 included. A usage that is none, below 0,
// infinite or NaN, is passed over, as if Observe had not been called: an upstream that reports
// nonsense changes no estimate, and fails no worker.
func (q *Quantiles) Observe(key string, used float64) {
	if q == nil || q.keys == nil || !(used >= 0 && used <= math.MaxFloat64) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.series(key).add(used)
}

// series finds the key's series or begins one: in place of the one that was used the longest ago,
// if there are MaxKeys.
func (q *Quantiles) series(key string) *series {
	e, ok := q.keys[key]
	if ok {
		q.recent.MoveToFront(e)
		return e.Value.(*series)
	}
	if q.recent.Len() < q.cfg.MaxKeys {
		e = q.recent.PushFront(newSeries(q.cfg.Window))
	} else {
		e = q.recent.Back()
		delete(q.keys, e.Value.(*series).key)
		q.recent.MoveToFront(e)
	}
	s := e.Value.(*series)
	s.restart(strings.Clone(key)) // which may be a small part of something large
	q.keys[s.key] = e
	return s
}

// series are the last usages of one key, twice: in the order of their arrival, and in ascending
// order.
type series struct {
	key    string
	ring   []float64 // of the window's capacity
	oldest int       // its index in the ring, once that is full
	sorted []float64
}

func newSeries(window int) *series {
	both := make([]float64, 2*window)
	return &series{ring: both[:0:window], sorted: both[window:window]}
}

func (s *series) restart(key string) {
	s.key, s.ring, s.oldest, s.sorted = key, s.ring[:0], 0, s.sorted[:0]
}

func (s *series) add(used float64) {
	if len(s.ring) < cap(s.ring) {
		s.ring = append(s.ring, used)
	} else {
		i, _ := slices.BinarySearch(s.sorted, s.ring[s.oldest])
		s.sorted = slices.Delete(s.sorted, i, i+1)
		s.ring[s.oldest] = used
		s.oldest = (s.oldest + 1) % len(s.ring)
	}
	i, _ := slices.BinarySearch(s.sorted, used)
	s.sorted = slices.Insert(s.sorted, i, used)
}

// rank is the smallest k for which k/n is at least p. The rounded product p*n alone may be one off:
// 0.07*100 is above 7. But 7/100, rounded, is the same float64 as 0.07, so that the division
// decides.
func rank(p float64, n int) int {
	k := max(1, int(p*float64(n)))
	for float64(k)/float64(n) < p {
		k++
	}
	return k
}
