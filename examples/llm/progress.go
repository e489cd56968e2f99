package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows how the demo stands: two lines that are drawn anew on a terminal, else two lines
// every two seconds.
type progress struct {
	out   io.Writer
	live  bool
	color bool
	start time.Time
}

func newProgress(f *os.File) *progress {
	info, err := f.Stat()
	live := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &progress{out: f, live: live, color: live && os.Getenv("NO_COLOR") == "",
		start: time.Now()}
}

func (p *progress) every() time.Duration {
	if p.live {
		return 100 * time.Millisecond
	}
	return 2 * time.Second
}

// show draws the counts. load is how full the API's minute is, or below 0 if nobody knows.
// It has room on a terminal of 80 columns.
func (p *progress) show(total int, c counts, refused int64, load float64, next string) {
	line := fmt.Sprintf("%5.1f s  answered %d/%d  429s %d", time.Since(p.start).Seconds(),
		c.answered, total, refused)
	if load >= 0 {
		line += "  API " + p.bar(load, 20)
	}
	if p.live { // two lines, and back up to the first
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s\n\x1b[K%s\x1b[A", line, next)
		return
	}
	_, _ = fmt.Fprintln(p.out, line)
	if next != "" {
		_, _ = fmt.Fprintln(p.out, "         "+next)
	}
}

// end leaves the last lines standing.
func (p *progress) end() {
	if p.live {
		_, _ = fmt.Fprint(p.out, "\n\n")
	}
}

// bar draws a share of a limit; what is beyond it stands behind the mark.
func (p *progress) bar(share float64, width int) string {
	n := int(share*float64(width) + 0.5)
	text := strings.Repeat("█", min(n, width)) + strings.Repeat("░", max(0, width-n)) + "│" +
		strings.Repeat("█", max(0, n-width))
	if !p.color {
		return fmt.Sprintf("%s %3.0f%%", text, share*100)
	}
	color := 32 // green
	if share > 1 {
		color = 31
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m %3.0f%%", color, text, share*100)
}

// watch shows the progress until all messages are answered.
func watch(ctx context.Context, p *progress, s *store, total int, refused func() int64,
	load func() float64,
	next func(context.Context) (string, error),
) error {
	answered := 0
	tick := time.NewTicker(p.every())
	defer tick.Stop()
	defer p.end()
	for {
		c, err := s.counts(ctx)
		waits := ""
		if err == nil {
			waits, err = next(ctx)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d messages answered: %w", answered, total, context.Cause(ctx))
		}
		if err != nil {
			return err
		}
		answered = c.answered
		p.show(total, c, refused(), load(), waits)
		if c.answered == total {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
