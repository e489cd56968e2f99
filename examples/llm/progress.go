package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows how the demo stands: a line that is drawn anew on a terminal, else a line every two seconds.
type progress struct {
	out   io.Writer
	live  bool
	color bool
	start time.Time
}

func newProgress(f *os.File) *progress {
	info, err := f.Stat()
	live := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &progress{out: f, live: live, color: live && os.Getenv("NO_COLOR") == "", start: time.Now()}
}

func (p *progress) every() time.Duration {
	if p.live {
		return 100 * time.Millisecond
	}
	return 2 * time.Second
}

// show draws the counts. load is how full the API's minute is, or below 0 if nobody knows.
func (p *progress) show(total int, c counts, refused int64, load float64) {
	line := fmt.Sprintf("%5.1f s  saved %d/%d  reserved ahead %d  started %d  answered %d  429s %d",
		time.Since(p.start).Seconds(), c.saved, total, c.reserved, c.started, c.answered, refused)
	if load >= 0 {
		line += "  API " + p.bar(load, 20)
	}
	if p.live {
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		return
	}
	_, _ = fmt.Fprintln(p.out, line)
}

// end leaves the last line standing.
func (p *progress) end() {
	if p.live {
		_, _ = fmt.Fprintln(p.out)
	}
}

// bar draws a share of a limit; what is beyond it stands behind the mark.
func (p *progress) bar(share float64, width int) string {
	n := int(share*float64(width) + 0.5)
	text := strings.Repeat("█", min(n, width)) + strings.Repeat("░", max(0, width-n)) + "│" + strings.Repeat("█", max(0, n-width))
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
func watch(ctx context.Context, p *progress, s *store, total int, refused func() int64, load func() float64) error {
	tick := time.NewTicker(p.every())
	defer tick.Stop()
	defer p.end()
	for {
		c, err := s.counts(ctx)
		if err != nil {
			return err
		}
		p.show(total, c, refused(), load())
		if c.answered == total {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
