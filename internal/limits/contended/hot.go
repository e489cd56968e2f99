package contended

import (
	"log/slog"
	"sync"
	"time"
)

// Hot warns about limits that need more shards: those on whose rows transactions conflict all the
// time. It counts serialization failures. At READ COMMITTED, where callers queue for a row, there
// are none to count.
type Hot struct {
	Logger *slog.Logger

	mu sync.Mutex
	of map[string]*heat // by limit: the program defines a bounded number
}

type heat struct {
	since time.Time
	n     int
	told  time.Time
}

const (
	manyConflicts = 120 // in one hotMinute: two a second
	hotMinute     = time.Minute
	toldEvery     = 10 * time.Minute
)

// Conflict notes that a transaction has failed on a row of a limit with so many shards.
func (h *Hot) Conflict(limit string, shards int, now time.Time) {
	n, within, tell := h.note(limit, now)
	if !tell {
		return
	}
	// Without the lock: writing logs may take long, and may use the limiter.
	h.Logger.Warn("ratelimit: transactions conflict on the rows of a limit; give it more shards: see ratelimit.Shards",
		"limit", limit, "shards", shards, "conflicts", n, "within", within.Round(time.Second))
}

// note counts a conflict. It returns how many there were within which time, and whether to tell.
func (h *Hot) note(limit string, now time.Time) (n int, within time.Duration, tell bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = make(map[string]*heat)
	}
	k := h.of[limit]
	if k == nil {
		k = &heat{since: now}
		h.of[limit] = k
	}
	if now.Sub(k.since) > hotMinute {
		k.since, k.n = now, 0
	}
	if k.n++; k.n < manyConflicts || !k.told.IsZero() && now.Sub(k.told) < toldEvery {
		return 0, 0, false
	}
	k.told = now
	return k.n, now.Sub(k.since), true
}
