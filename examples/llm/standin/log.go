package standin

import (
	"sync"
	"time"
)

// Log is an exact sliding log: it admits a call only if, with it, no interval of the window's
// length holds more tokens or more requests than the limits. A call counts with its estimate while
// it is under way, and with what it has used from when it is done. The log remembers every call
// that it admitted.
type Log struct {
	window           time.Duration
	tokens, requests int

	mu      sync.Mutex
	calls   []Call
	refused int
	peak    float64
}

// Call is an admitted call.
type Call struct {
	At     time.Time
	Tokens int // the estimate, or what was used if it is done
	Done   bool
}

// NewLog makes a log with the limits for any interval of the window's length.
func NewLog(window time.Duration, tokens, requests int) *Log {
	return &Log{window: window, tokens: tokens, requests: requests}
}

// Admit admits a call of an estimated number of tokens at now and returns its number, or says how
// long it takes until one would be admitted at the latest: sooner, if a call that is under way uses
// less than its estimate. Calls must come in the order of their times.
func (l *Log) Admit(now time.Time, estimate int) (call int, retryAfter time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if estimate > l.tokens {
		l.refused++
		return 0, l.window, false
	}
	// Walk back through the window, from the youngest call to the oldest. The first that leaves no
	// room for this call has to leave the window before there is any.
	tokens, requests := estimate, 1
	for i := len(l.calls) - 1; i >= 0; i-- {
		c := l.calls[i]
		if now.Sub(c.At) >= l.window {
			break
		}
		tokens, requests = tokens+c.Tokens, requests+1
		if tokens > l.tokens || requests > l.requests {
			l.refused++
			return 0, l.window - now.Sub(c.At), false
		}
	}
	l.calls = append(l.calls, Call{At: now, Tokens: estimate})
	l.peak = max(l.peak, float64(tokens)/float64(l.tokens), float64(requests)/float64(l.requests))
	return len(l.calls) - 1, 0, true
}

// Done puts what a call has used in the place of its estimate. A call for which nobody says it
// keeps that.
func (l *Log) Done(now time.Time, call, used int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.calls[call]
	more := used > c.Tokens
	c.Tokens, c.Done = used, true
	if more {
		l.peak = max(l.peak, l.load(now))
	}
}

// Calls returns the admitted calls, oldest first.
func (l *Log) Calls() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Call(nil), l.calls...)
}

// Refused counts the calls that were answered with 429.
func (l *Log) Refused() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Peak is the fullest that the window ever was, as a share of the limit that it was nearest to.
func (l *Log) Peak() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peak
}

// Load is how full the window is at now, as far as is known then: tokens as a share of their limit.
func (l *Log) Load(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load(now)
}

func (l *Log) load(now time.Time) float64 {
	n := 0
	for i := len(l.calls) - 1; i >= 0 && now.Sub(l.calls[i].At) < l.window; i-- {
		n += l.calls[i].Tokens
	}
	return float64(n) / float64(l.tokens)
}
