package contended

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestALimitThatIsFoughtForIsToldOfNowAndThen(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := Hot{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	now := time.Unix(1_700_000_000, 0)
	lines := func() int { return strings.Count(log.String(), "level=WARN") }
	many := func(limit string, n int, every time.Duration) {
		for range n {
			now = now.Add(every)
			h.Conflict(limit, 4, now)
		}
	}
	many("calm", 10*manyConflicts, time.Second) // half as many as would be told of
	many("hot", manyConflicts-1, time.Millisecond)
	if lines() != 0 {
		t.Error(log.String())
	}
	many("hot", 1, time.Millisecond)
	if lines() != 1 || !strings.Contains(log.String(), "limit=hot shards=4 conflicts=120") {
		t.Error(log.String())
	}
	many("hot", 3*manyConflicts, 100*time.Millisecond)
	if lines() != 1 {
		t.Errorf("told again too soon: %s", log.String())
	}
	now = now.Add(toldEvery)
	many("hot", manyConflicts, time.Millisecond)
	if lines() != 2 {
		t.Errorf("not told again: %s", log.String())
	}
}

// conflicting is a handler of logs that meets a conflict itself, as one that writes to the database.
type conflicting struct {
	slog.Handler
	h *Hot
}

func (c conflicting) Handle(ctx context.Context, r slog.Record) error {
	c.h.Conflict("logs", 1, r.Time)
	return c.Handler.Handle(ctx, r)
}

// A conflict that somebody meets while the warning is written waits for nothing.
func TestAWarningHoldsUpNoOtherConflict(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := new(Hot)
	h.Logger = slog.New(conflicting{slog.NewTextHandler(&log, nil), h})
	told := make(chan struct{})
	go func() {
		defer close(told)
		for range manyConflicts {
			h.Conflict("hot", 4, time.Unix(1_700_000_000, 0))
		}
	}()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Fatal("the warning waits for itself")
	}
	if !strings.Contains(log.String(), "limit=hot") {
		t.Errorf("told %q", log.String())
	}
}
