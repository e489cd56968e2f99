package observe

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Log is an observer that writes to log/slog. The zero Log uses the defaults. It is safe for
// concurrent use; its fields must not change once it is used.
//
// For each limit there is at most one line of each kind per Every. Its "times" says how often that
// has happened since the previous line.
//
//	WARN  ratelimit: near the limit      a grant left less of the capacity than Near says
//	INFO  ratelimit: denied              with "retry_after" of the latest denial
//	WARN  ratelimit: denied in shadow    a shadow limit would have denied
//	ERROR ratelimit: not decided         an error, the caller's own mistakes among them
//	WARN  ratelimit: transaction ran again    with its "attempts", and the time that it "queued"
//
// A denial has "max_reserved" if more than the limit's MaxReserved would be owed: the queue of
// reservations is full, and the key itself may have used little. Like "retry_after", it is about
// the call that wrote the line, and not about the others in "times".
//
// Log does not report contexts that have ended, nor errors with which callbacks roll back: those
// are for the caller.
type Log struct {
	Logger *slog.Logger  // Default: [slog.Default].
	Every  time.Duration // Default: a minute.

	// Near is the share of its capacity that a key has used when a warning is logged; 1 is all of
	// it. Default: 0.9. Below 0: no warnings.
	Near float64

	// Attempts is the number of runs from which a transaction is reported. Default: 5.
	Attempts int

	// Keys adds to a line the key of the call that it is about. Default: false.
	Keys bool

	mu   sync.Mutex
	said map[about]*count
}

// about is what a line is about.
type about struct{ what, limit string }

// count is how often something has happened since the line at.
type count struct {
	at    time.Time
	times int
}

// mostLimits bounds the memory. What others do is told in one line for all of them.
const mostLimits = 1000

// Decided implements [ratelimit.Observer].
func (l *Log) Decided(ctx context.Context, e ratelimit.DecidedEvent) {
	if e.Err != nil {
		if !errors.Is(e.Err, context.Canceled) && !errors.Is(ctx.Err(), context.Canceled) {
			l.say(ctx, slog.LevelError, "ratelimit: not decided", nameOf(e), keyOf(e),
				slog.Any("error", l.shown(e.Err)))
		}
		return
	}
	if len(e.Result.Outcomes) == 0 && !e.Result.OK { // that of a lease
		l.say(ctx, slog.LevelInfo, "ratelimit: denied", nameOf(e), keyOf(e),
			slog.Duration("retry_after", e.Result.RetryAfter()))
	}
	for i := range e.Result.Outcomes {
		switch o := &e.Result.Outcomes[i]; {
		case o.Shadow && !o.OK:
			l.say(ctx, slog.LevelWarn, "ratelimit: denied in shadow", o.Limit, o.Key,
				byMaxReserved(o)...)
		case !o.OK:
			after := slog.Duration("retry_after", o.RetryAt.Sub(e.Result.At))
			l.say(ctx, slog.LevelInfo, "ratelimit: denied", o.Limit, o.Key,
				append(byMaxReserved(o), after)...)
		case e.Result.OK && l.near(o):
			l.say(ctx, slog.LevelWarn, "ratelimit: near the limit", o.Limit, o.Key,
				slog.Float64("left", o.Value), slog.Float64("capacity", o.Capacity))
		}
	}
}

// shown is an error without the key that it tells: only those that refuse a key, or two requests
// for one, do.
func (l *Log) shown(err error) error {
	var refused *ratelimit.InvalidError
	if l.Keys || !errors.As(err, &refused) ||
		refused.Field != "key" && refused.Field != "requests" {
		return err
	}
	e := *refused
	e.Value = "(not logged)"
	return &e
}

// Transacted implements [ratelimit.Observer].
func (l *Log) Transacted(ctx context.Context, e ratelimit.TransactedEvent) {
	if e.Attempts >= cmp.Or(l.Attempts, 5) {
		l.say(ctx, slog.LevelWarn, "ratelimit: transaction ran again", "", "",
			slog.Int("attempts", e.Attempts),
			slog.Duration("queued", e.Queued), slog.Duration("took", e.Took))
	}
}

func (l *Log) near(o *ratelimit.Outcome) bool {
	near := cmp.Or(l.Near, 0.9)
	return near >= 0 && o.Capacity > 0 && o.Capacity-o.Value >= near*o.Capacity
}

// byMaxReserved is the attribute of a denial because more than the limit's MaxReserved would be
// owed.
func byMaxReserved(o *ratelimit.Outcome) []slog.Attr {
	alone := ratelimit.Result{Limit: o.Limit, Key: o.Key, RetryAt: o.RetryAt,
		Outcomes: []ratelimit.Outcome{*o}}
	var denial *ratelimit.DeniedError
	if !errors.As(alone.Err(), &denial) || denial.MaxReserved == 0 {
		return nil
	}
	return []slog.Attr{slog.Float64("max_reserved", denial.MaxReserved)}
}

// say writes a line, unless there was one of the same kind lately.
func (l *Log) say(
	ctx context.Context, level slog.Level, what, limit, key string, more ...slog.Attr,
) {
	logger := cmp.Or(l.Logger, slog.Default())
	if !logger.Enabled(ctx, level) {
		return
	}
	of, times, ok := l.due(about{what, limit}, time.Now())
	if !ok {
		return
	}
	attrs := make([]slog.Attr, 0, 3+len(more))
	if of.limit != "" {
		attrs = append(attrs, slog.String("limit", limit))
	}
	if l.Keys && key != "" && of.limit != "" {
		attrs = append(attrs, slog.String("key", key))
	}
	attrs = append(attrs, more...)
	logger.LogAttrs(ctx, level, what, append(attrs, slog.Int("times", times))...)
}

// due tells whether it is time for a line, about what, and how often that happened.
func (l *Log) due(a about, now time.Time) (of about, times int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil {
		l.said = make(map[about]*count)
	}
	c := l.said[a]
	if c == nil && len(l.said) >= mostLimits {
		a.limit = ""
		c = l.said[a]
	}
	if c == nil {
		c = &count{}
		l.said[a] = c
	}
	c.times++
	if !c.at.IsZero() && now.Sub(c.at) < cmp.Or(max(0, l.Every), time.Minute) {
		return a, 0, false
	}
	times = c.times
	c.at, c.times = now, 0
	return a, times, true
}

// nameOf and keyOf are of the first request: there are no outcomes of what was not decided.
func nameOf(e ratelimit.DecidedEvent) string {
	if len(e.Requests) == 0 {
		return ""
	}
	return e.Requests[0].Limit().Name()
}

func keyOf(e ratelimit.DecidedEvent) string {
	if len(e.Requests) == 0 {
		return ""
	}
	return e.Requests[0].Key()
}
