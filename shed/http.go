package shed

import (
	"bufio"
	"context"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Handler is a middleware for all requests of a server. Config.Class returns their classes.
func (s *Shedder) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		class := Normal
		if s.cfg.Class != nil {
			class = s.cfg.Class(r)
		}
		s.serve(w, r, class, next)
	})
}

// Route makes a middleware for routes of one class. A request that already holds a permit of this
// Shedder passes, so inside of Handler, or of another Route, it does nothing.
func (s *Shedder) Route(class Class) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, class, next)
		})
	}
}

// inside is the key, in a request's context, of the Shedder that has decided it.
type inside struct{ *Shedder }

func (s *Shedder) serve(w http.ResponseWriter, r *http.Request, class Class, next http.Handler) {
	class = min(max(class, Background), Critical)
	if r.Context().Value(inside{s}) != nil || s.cfg.Exclude != nil && s.cfg.Exclude(r) {
		next.ServeHTTP(w, r)
		return
	}
	t := s.claim(class)
	if s.cfg.Shadow {
		s.shadow(w, r, t, next)
		return
	}
	outcome, waited, stats := s.acquire(r.Context(), t)
	if outcome == Admitted {
		defer s.release(t) // after a panic, too
	}
	s.tell(Event{Request: r, Class: class, Outcome: outcome, Waited: waited, Stats: stats})
	if outcome != Admitted {
		w.Header().Set("Retry-After", strconv.Itoa(s.retryAfter()))
		s.cfg.Refused.ServeHTTP(w, r)
		return
	}
	s.run(w, r, t, next)
}

// run calls the handler of a request that holds its permit, or would not need one in shadow mode.
func (s *Shedder) run(w http.ResponseWriter, r *http.Request, t *ticket, next http.Handler) {
	if upgrades(r) {
		w = &upgradable{w, func() { s.end(t) }}
	}
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), inside{s}, true)))
}

// shadow runs the request at once, and its ticket as if the request waited for it.
func (s *Shedder) shadow(w http.ResponseWriter, r *http.Request, t *ticket, next http.Handler) {
	began := time.Now()
	event := Event{Request: r, Class: t.class, Shadow: true}
	tell := func(o Outcome, waited time.Duration, stats Stats) {
		event.Outcome, event.Waited, event.Stats = o, waited, stats
		s.tell(event)
	}
	s.mu.Lock()
	s.arrive(t)
	now, stats := t.state, s.stats()
	if now == waiting {
		event.Request = r.Clone(r.Context()) // as the handler may change r before the event is told
		timer := time.AfterFunc(s.cfg.MaxWait, func() {
			s.mu.Lock()
			expired := t.state == waiting
			if expired {
				s.remove(t)
			}
			stats := s.stats()
			s.mu.Unlock()
			if expired {
				tell(Refused, time.Since(began), stats)
			}
		})
		t.onDecided = func(o Outcome, stats Stats) {
			timer.Stop()
			go tell(o, time.Since(began), stats) // as mu is locked
		}
	}
	s.mu.Unlock()
	defer s.end(t)
	switch now {
	case held:
		tell(Admitted, 0, stats)
	case gone:
		tell(Refused, 0, stats)
	}
	s.run(w, r, t, next)
}

// end is release for a ticket that may still wait, in shadow mode.
func (s *Shedder) end(t *ticket) {
	s.mu.Lock()
	t.done = true
	s.mu.Unlock()
	s.release(t)
}

func (s *Shedder) tell(e Event) {
	if s.cfg.Observer != nil {
		s.cfg.Observer(e)
	}
}

// retryAfter is n to 2n seconds, each as often, where n is RetryAfter rounded up.
func (s *Shedder) retryAfter() int {
	n := math.Ceil(s.cfg.RetryAfter.Seconds())
	return int(n + math.Floor(s.rand()*(n+1)))
}

// upgrades says whether the client asks for another protocol on this connection.
func upgrades(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.Header.Get("Upgrade") == "" {
		return false
	}
	for _, field := range r.Header.Values("Connection") {
		for token := range strings.SplitSeq(field, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// upgradable frees the permit when the handler takes the connection over.
type upgradable struct {
	http.ResponseWriter
	hijacked func()
}

func (u *upgradable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil {
		u.hijacked()
	}
	return conn, rw, err
}

func (u *upgradable) Flush() { _ = http.NewResponseController(u.ResponseWriter).Flush() }

func (u *upgradable) Unwrap() http.ResponseWriter { return u.ResponseWriter }
