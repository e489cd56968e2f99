package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
)

// within waits for something to happen.
func within[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// In a pause that the client knows of no reserved job starts; when it ends all do. So it is for a
// pause of all queues, and for one queue of those that is resumed alone.
func TestAQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ paused, resumed string }{
		{river.QueueDefault, river.QueueDefault}, {"*", "*"}, {"*", river.QueueDefault},
	} {
		t.Run(fmt.Sprintf("%s,%s", c.paused, c.resumed), func(t *testing.T) {
			beside(t, func(t *testing.T, s *setting) {
				client := s.client(t)
				paused, unsubscribe := client.Subscribe(river.EventKindQueuePaused)
				defer unsubscribe()
				// One job starts before the pause, and six are due in it.
				due := s.insertDue(t, client, 1, 0, nil)
				s.j.await(t, 1)
				if err := client.QueuePause(t.Context(), c.paused, nil); err != nil {
					t.Fatal(err)
				}
				within(t, "the client knows of the pause", paused)
				now := s.f.now(t)
				for n := range 6 {
					in := 300 * time.Millisecond
					if n == 5 {
						in = 1500 * time.Millisecond // River has polled by then
					}
					job := s.insert(t, client, 100+n, now.Add(in), nil).Job
					due[job.ID] = job.ScheduledAt
				}
				eventually(t, "they are due", func() bool { return s.f.count(t, fetchable) == 6 })
				resumed := s.f.now(t)
				if err := client.QueueResume(t.Context(), c.resumed, nil); err != nil {
					t.Fatal(err)
				}
				starts := s.j.await(t, 7)
				punctual(t, starts, due)
				for _, start := range starts[1:] {
					if start.at.Before(resumed) {
						t.Errorf("job %d started in the pause", start.n)
					}
				}
				s.f.completed(t, 7)
			})
		})
	}
}

// listener is a log that waits for one message.
type listener struct {
	slog.Handler
	text  string
	once  *sync.Once
	heard chan struct{}
}

func newListener(text string) *listener {
	return &listener{text: text, once: new(sync.Once), heard: make(chan struct{})}
}

// hasHeard reports whether there was the message.
func (l *listener) hasHeard() bool {
	select {
	case <-l.heard:
		return true
	default:
		return false
	}
}

func (l *listener) Enabled(context.Context, slog.Level) bool { return true }

func (l *listener) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *listener) WithGroup(string) slog.Handler { return l }

func (l *listener) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.text) {
		l.once.Do(func() { close(l.heard) })
	}
	return nil
}

// A client that is being stopped starts nothing more, and leaves alone what waits.
func TestAStoppedClientStartsNothing(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	stops := map[string]func(client *river.Client[pgx.Tx]) error{
		// it returns at once, and goes on
		"Stop":          func(client *river.Client[pgx.Tx]) error { return client.Stop(over) },
		"SoftStop":      func(client *river.Client[pgx.Tx]) error { return client.Stop(over) },
		"StopAndCancel": func(client *river.Client[pgx.Tx]) error { return client.StopAndCancel(over) },
	}
	for name, begin := range stops {
		t.Run(name, func(t *testing.T) {
			beside(t, func(t *testing.T, s *setting) {
				stopping := newListener("Entering shutdown loop")
				s.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
					<-stopping.heard
					if name == "Stop" {
						return ctx.Err()
					}
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(patience):
						return errors.New("the stop did not cancel it")
					}
				}
				client := s.client(t, workers(3), func(c *river.Config) {
					c.Logger = slog.New(stopping)
					if name == "SoftStop" {
						c.SoftStopTimeout = time.Millisecond
					}
				})
				s.insertDue(t, client, 9, 0, nil)
				later := s.insertDue(t, client, 2, time.Hour, nil)
				soon := s.insertDue(t, client, 2, 24*time.Second, nil) // near enough to be available
				waiting := slices.Concat(slices.Collect(maps.Keys(later)), slices.Collect(maps.Keys(soon)))
				s.j.await(t, 3)
				before := s.f.rows(t, waiting)
				if err := begin(client); err == nil {
					t.Fatal("it stopped at once")
				}
				within(t, "it has stopped", client.Stopped())
				if n := s.f.count(t, `attempted_by IS NOT NULL`); n != 3 {
					t.Errorf("%d jobs have started, at 3 workers, when it was stopped", n)
				}
				if n := s.f.count(t, `state = 'running'`); n != 0 {
					t.Errorf("%d jobs run", n)
				}
				if after := s.f.rows(t, waiting); len(before) != 4 || !maps.Equal(before, after) {
					t.Errorf("the jobs that wait were %v, and are %v", before, after)
				}
				for id := range soon {
					if job := s.f.job(t, id); len(job.AttemptedBy) != 0 {
						t.Errorf("%+v", job)
					}
				}
			})
		})
	}
}

// rows are the rows of jobs, as text.
func (f *fixture) rows(t testing.TB, ids []int64) map[int64]string {
	t.Helper()
	rows := map[int64]string{}
	found, err := f.pool.Query(t.Context(), `SELECT id, j::text FROM river_job j WHERE id = ANY ($1)`, ids)
	if err != nil {
		t.Fatal(err)
	}
	var id int64
	var text string
	if _, err := pgx.ForEachRow(found, []any{&id, &text}, func() error { rows[id] = text; return nil }); err != nil {
		t.Fatal(err)
	}
	return rows
}
