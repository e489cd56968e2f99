package shed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Class is how important a request is. The zero Class is Normal. A value beyond these three counts
// as the nearest one.
type Class int

// The classes, from the one that is refused first.
const (
	Background Class = iota - 1
	Normal
	Critical
)

const classes = 3

func (c Class) String() string {
	return [classes]string{"background", "normal", "critical"}[c.index()]
}

// index is where the class is in an array of all classes: the least important comes first.
func (c Class) index() int { return int(min(max(c, Background), Critical) - Background) }

// Ramp says at which use a class is refused. Below From all its requests are admitted, and from To
// on none. In between the admitted share falls evenly.
type Ramp struct {
	From, To float64
}

// Config is how a Shedder decides. Only Limit has to be set.
type Config struct {
	// Limit is how many requests may be worked on at once. For handlers that wait for a pool of
	// connections, it is about the size of the pool. For handlers that compute, it is the number of
	// processors or a little more.
	Limit int

	// Class is the class of a request in [Shedder.Handler]. Without it all requests are Normal.
	Class func(*http.Request) Class

	// Exclude names requests that are neither counted nor refused, such as event streams and health
	// checks.
	Exclude func(*http.Request) bool

	// Normal and Background say at which use these classes are refused. Default: 0.7 to 0.95, and
	// 0.4 to 0.7. Background must not begin or end after Normal.
	Normal, Background Ramp

	// Queue is how many requests may wait. Default: Limit. If it is negative, none may.
	Queue int

	// MaxWait is how long a request may wait before it is refused. Default: 100 ms.
	MaxWait time.Duration

	// RetryAfter is the shortest time in Retry-After; the longest is twice that. Default: 1 s.
	// Times are rounded up to seconds.
	RetryAfter time.Duration

	// Refused answers a refused request, after the Retry-After field has been set. It should answer
	// with 503, as it does by default.
	Refused http.Handler

	// Observer gets an Event for each request that is not excluded, once it is decided. It is
	// called by several goroutines at once, and the request waits for it. It must not panic.
	Observer func(Event)

	// With Shadow the Shedder decides and calls Observer, but runs every request at once. A request
	// that would have waited takes a place in the queue while its handler is already running, so
	// that the events are close to those without Shadow.
	Shadow bool
}

// Outcome is what has happened to a request.
type Outcome int

// The outcomes.
const (
	// Admitted went to its handler.
	Admitted Outcome = iota
	// Refused got 503.
	Refused
	// Left is a request whose context ended while it waited, mostly because its client closed the
	// connection.
	Left
)

func (o Outcome) String() string {
	switch o {
	case Admitted:
		return "admitted"
	case Refused:
		return "refused"
	case Left:
		return "left"
	default:
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
}

// Event tells how a request was decided.
type Event struct {
	// not to be changed. In shadow mode it may be a copy of a request that has ended
	Request *http.Request
	Class   Class
	Outcome Outcome
	Waited  time.Duration // in the queue
	Stats                 // the Shedder's, right after the decision
	Shadow  bool          // the request was not refused, whatever the Outcome
}

// Stats is how busy a Shedder is.
type Stats struct {
	InUse  int // requests being worked on. In shadow mode those that would have been admitted
	Queued int // requests waiting
}

// Shedder admits requests up to a limit. Its methods may be called by several goroutines at once.
type Shedder struct {
	cfg   Config
	ramps [classes]Ramp
	rand  func() float64 // in [0, 1)

	mu     sync.Mutex
	inUse  int
	queued int
	queue  [classes][]*ticket // oldest first
}

// ticket is a request's claim to a permit.
type ticket struct {
	class Class
	// below is the number of permits in use below which the request may run. It is drawn once for
	// each request, evenly from its class's ramp. So the share that is refused follows the ramp,
	// and a waiting request is not drawn again and again until it is lucky.
	below float64
	state state
	done  bool // in shadow mode: its handler has ended

	decided   chan struct{} // closed on leaving the queue for held or refused, not in shadow mode
	onDecided func(Outcome, Stats)
}

type state int

const (
	waiting state = iota
	held
	gone // refused, left or released
)

// New makes a Shedder. It fails if the Config makes no sense.
func New(cfg Config) (*Shedder, error) {
	if cfg.Limit < 1 {
		return nil,
			fmt.Errorf("shed: Config.Limit is %d: set it to how many requests may be worked on at once",
				cfg.Limit)
	}
	if cfg.Normal == (Ramp{}) {
		cfg.Normal = Ramp{0.7, 0.95}
	}
	if cfg.Background == (Ramp{}) {
		cfg.Background = Ramp{0.4, 0.7}
	}
	for _, r := range []Ramp{cfg.Normal, cfg.Background} {
		if !(0 <= r.From && r.From <= r.To && 0 < r.To && r.To <= 1) {
			return nil, fmt.Errorf("shed: the ramp from %v to %v is not within 0 to 1", r.From,
				r.To)
		}
	}
	if cfg.Background.From > cfg.Normal.From || cfg.Background.To > cfg.Normal.To {
		return nil, errors.New(
			"shed: Config.Background begins or ends after Config.Normal: the less important class must be refused first",
		)
	}
	if cfg.MaxWait < 0 || cfg.RetryAfter < 0 {
		return nil, errors.New("shed: Config.MaxWait or Config.RetryAfter is negative")
	}
	if cfg.Queue == 0 {
		cfg.Queue = cfg.Limit
	}
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 100 * time.Millisecond
	}
	if cfg.RetryAfter == 0 {
		cfg.RetryAfter = time.Second
	}
	if cfg.Refused == nil {
		cfg.Refused = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "The server is busy. Try again later.", http.StatusServiceUnavailable)
		})
	}
	return &Shedder{cfg: cfg, ramps: [classes]Ramp{cfg.Background, cfg.Normal, {1, 1}},
		rand: rand.Float64}, nil
}

// Stats is how busy the Shedder is now.
func (s *Shedder) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats()
}

// stats is Stats for callers that have locked mu.
func (s *Shedder) stats() Stats { return Stats{InUse: s.inUse, Queued: s.queued} }

// claim draws a ticket.
func (s *Shedder) claim(c Class) *ticket {
	r := s.ramps[c.index()]
	share := r.To - (r.To-r.From)*s.rand() // in (From, To]
	return &ticket{class: c, below: share * float64(s.cfg.Limit)}
}

// mayRun is called with mu locked.
func (s *Shedder) mayRun(t *ticket) bool { return float64(s.inUse) < t.below }

// arrive gives the ticket a permit or a place in the queue, or makes it gone. It is called with mu
// locked.
func (s *Shedder) arrive(t *ticket) {
	if s.mayRun(t) {
		s.inUse++
		t.state = held
		return
	}
	if s.queued >= s.cfg.Queue && !s.evict(t.class) {
		t.state = gone
		return
	}
	i := t.class.index()
	s.queue[i] = append(s.queue[i], t)
	s.queued++
}

// evict refuses the newest request of the lowest class that waits, if that is lower than c. It is
// called with mu locked.
func (s *Shedder) evict(c Class) bool {
	for i := range c.index() {
		if n := len(s.queue[i]); n > 0 {
			t := s.queue[i][n-1]
			s.remove(t)
			s.decide(t, Refused)
			return true
		}
	}
	return false
}

// remove takes a waiting ticket out of the queue. It is called with mu locked.
func (s *Shedder) remove(t *ticket) {
	i := t.class.index()
	for n, other := range s.queue[i] {
		if other == t {
			last := len(s.queue[i]) - 1
			copy(s.queue[i][n:], s.queue[i][n+1:])
			s.queue[i][last] = nil
			s.queue[i] = s.queue[i][:last]
			s.queued--
			t.state = gone
			return
		}
	}
}

// decide tells a ticket that has left the queue. It is called with mu locked.
func (s *Shedder) decide(t *ticket, o Outcome) {
	if t.decided != nil {
		close(t.decided)
	}
	if t.onDecided != nil {
		t.onDecided(o, s.stats())
	}
}

// release gives a permit back, once, and passes it on.
func (s *Shedder) release(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.state != held {
		return
	}
	t.state = gone
	s.inUse--
	s.passOn()
}

// passOn admits the waiting requests that may run. It is called with mu locked.
func (s *Shedder) passOn() {
	for i := classes - 1; i >= 0; i-- {
		for n := 0; n < len(s.queue[i]); {
			t := s.queue[i][n]
			if !s.mayRun(t) {
				n++
				continue
			}
			s.remove(t)
			if t.done { // in shadow mode the work is over already
				s.decide(t, Admitted)
				continue
			}
			s.inUse++
			t.state = held
			s.decide(t, Admitted)
		}
	}
}

// acquire waits for a permit. If it is Admitted, the caller must release the ticket.
func (s *Shedder) acquire(ctx context.Context, t *ticket) (Outcome, time.Duration, Stats) {
	s.mu.Lock()
	s.arrive(t)
	now, stats := t.state, s.stats()
	if now == waiting {
		t.decided = make(chan struct{})
	}
	s.mu.Unlock()
	switch now {
	case held:
		return Admitted, 0, stats
	case gone:
		return Refused, 0, stats
	}
	began := time.Now()
	timer := time.NewTimer(s.cfg.MaxWait)
	defer timer.Stop()
	select {
	case <-t.decided:
	case <-timer.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	outcome := Refused
	if t.state == held {
		outcome = Admitted
	}
	if ctx.Err() != nil {
		outcome = Left
	}
	switch {
	case t.state == waiting:
		s.remove(t)
	case t.state == held && outcome == Left:
		t.state = gone
		s.inUse--
		s.passOn()
	}
	return outcome, time.Since(began), s.stats()
}
