package standin

import (
	"sync"
	"time"
)

// Log is an exact sliding log: it admits a call only if, with it, no interval of the window's length holds more tokens or
// more requests than the limits. It remembers every call that it admitted.
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
	Tokens int
}

// NewLog makes a log with the limits for any interval of the window's length.
func NewLog(window time.Duration, tokens, requests int) *Log {
	return &Log{window: window, tokens: tokens, requests: requests}
}

// Admit admits a call of n tokens at now, or says how long it takes until one would be admitted. Calls must come in the
// order of their times.
func (l *Log) Admit(now time.Time, n int) (retryAfter time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.tokens {
		l.refused++
		return l.window, false
	}
	// Walk back through the window, from the youngest call to the oldest. The first that leaves no room for this call has
	// to leave the window before there is any.
	tokens, requests := n, 1
	for i := len(l.calls) - 1; i >= 0; i-- {
		c := l.calls[i]
		if now.Sub(c.At) >= l.window {
			break
		}
		tokens, requests = tokens+c.Tokens, requests+1
		if tokens > l.tokens || requests > l.requests {
			l.refused++
			return l.window - now.Sub(c.At), false
		}
	}
	l.calls = append(l.calls, Call{now, n})
	l.peak = max(l.peak, float64(tokens)/float64(l.tokens), float64(requests)/float64(l.requests))
	return 0, true
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

// Load is how full the window is at now: tokens as a share of their limit.
func (l *Log) Load(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for i := len(l.calls) - 1; i >= 0 && now.Sub(l.calls[i].At) < l.window; i-- {
		n += l.calls[i].Tokens
	}
	return float64(n) / float64(l.tokens)
}
