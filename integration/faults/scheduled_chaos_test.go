package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// chaos is a time in which processes of a crew are killed and frozen while jobs become due.
type chaos struct {
	*shift
	rescue time.Duration // River's RescueStuckJobsAfter
	jobs   int
	lasts  time.Duration // until all jobs are reserved
	ahead  time.Duration // the longest that a job waits
	freeze [2]time.Duration
	pause  time.Duration // between two faults, at the least
	brief  bool          // the dead are made to look as if they had been dead for long

	mu      sync.Mutex
	frozen  map[string]bool
	freezes map[string][]span
	deaths  map[string]time.Time
	kills   int
	stops   int
}

type span struct{ from, to time.Time }

// soak is the least WEIR_TEST_DURATION for which the tests of scheduled work take minutes.
const soak = time.Minute

// long says that a soak is wanted, and for how long.
func long(t *testing.T) (d time.Duration, ok bool) {
	t.Helper()
	v := os.Getenv("WEIR_TEST_DURATION")
	if v == "" {
		return 0, false
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("WEIR_TEST_DURATION is %q: %v", v, err)
	}
	return d, d >= soak
}

func newChaos(t *testing.T, rescue time.Duration, control bool) *chaos {
	t.Helper()
	c := &chaos{
		rescue: rescue, frozen: map[string]bool{}, freezes: map[string][]span{}, deaths: map[string]time.Time{},
		jobs: 100, lasts: 3 * time.Second, ahead: 2 * time.Second, brief: true, pause: 250 * time.Millisecond,
		freeze: [2]time.Duration{time.Second, 2 * time.Second},
	}
	if d, ok := long(t); ok {
		c.lasts, c.ahead, c.brief, c.pause = max(3*time.Minute, d-4*time.Minute), 35*time.Second, false, time.Second
		c.jobs = max(10_000, int(25*c.lasts.Seconds()))
		c.freeze = [2]time.Duration{30 * time.Second, time.Minute}
	} else if rescue < time.Minute {
		c.rescue = 500 * time.Millisecond // less than a freeze, here as well
	}
	c.shift = newShift(t)
	c.env = []string{rescueEnv + "=" + c.rescue.String(), busyEnv + "=yes"}
	c.exec(t, `CREATE INDEX ON start (job)`, `CREATE INDEX ON done (job)`, `CREATE INDEX ON plan (job)`)
	if err := c.connectRiver(control); err != nil {
		t.Fatal(err)
	}
	return c
}

// Under kills and freezes no job starts early, none is lost, and none is completed without having
// been worked, on clients with the plugin and without. And none is worked twice, except by River's
// rescue: because its first worker was killed, or frozen for longer than RescueStuckJobsAfter. The
// freezes here are shorter.
func TestScheduledWorkInChaos(t *testing.T) {
	t.Parallel()
	c := newChaos(t, 2*time.Minute, false)
	f := c.run(t)
	if len(f.unexplained) > 0 {
		t.Errorf("%d second starts are no rescue of River's: see above", len(f.unexplained))
	}
	if !c.brief && (f.byPlain == 0 || f.byPlain == f.starts || f.afterKill == 0) {
		t.Errorf("the faults have hit little: %v", f)
	}
}

// With a rescue that is shorter than a freeze, River gives a job to a second worker while the first
// one is about to go on, and writes what has become of either attempt by the job's id. So River by
// itself works jobs twice, and this looks at no more than what it promises all the same. The counts
// stand next to those of River without any plugin.
func TestScheduledWorkInChaosWithAShortRescue(t *testing.T) {
	t.Parallel()
	for name, control := range map[string]bool{"Weir": false, "River": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, ok := long(t); !ok && control {
				t.Skip("a control, for a soak")
			}
			newChaos(t, 20*time.Second, control).run(t)
		})
	}
}

// River alone under the faults of TestScheduledWorkInChaos.
func TestScheduledWorkInChaosOfRiverAlone(t *testing.T) {
	t.Parallel()
	if _, ok := long(t); !ok {
		t.Skip("a control, for a soak")
	}
	newChaos(t, 2*time.Minute, true).run(t)
}

// run lets there be chaos, waits until all jobs are over, and returns what the database says.
func (c *chaos) run(t *testing.T) *findings {
	t.Helper()
	began := time.Now()
	crew := []kind{careful, careful, plain}
	if !c.brief {
		crew = []kind{careful, careful, careful, plain, plain}
	}
	if c.control {
		for i := range crew {
			crew[i] = plain
		}
	}
	c.hire(t, crew...)
	reserved := c.reserveAll(t)
	thaws := &sync.WaitGroup{}
	for going := true; going || c.kills == 0 || c.stops == 0; {
		select {
		case <-reserved:
			going, reserved = false, nil
		case <-time.After(c.pause + rand.N(c.pause)):
			c.fault(t, thaws)
		}
	}
	thaws.Wait()
	c.finish(t)
	c.dismiss(t)
	f := c.counts(t)
	rescue := c.rescue.String()
	if c.control {
		rescue += ", River alone"
	}
	summary := fmt.Sprintf("faults: %s (rescue after %s): in %.0f s %d kills and %d freezes: %s",
		t.Name(), rescue, time.Since(began).Seconds(), c.kills, c.stops, f)
	t.Log(summary)
	fmt.Println(summary)
	for _, text := range f.unexplained {
		t.Log(text)
	}
	if f.early+f.lost+f.unworked+f.unplanned > 0 || f.jobs < c.jobs {
		t.Errorf("%d jobs were wanted", c.jobs)
		t.Error(f)
	}
	return f
}

// reserveAll reserves the jobs; the channel is closed when that is done.
func (c *chaos) reserveAll(t *testing.T) <-chan struct{} {
	t.Helper()
	const hands = 4
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range hands {
		wg.Go(func() {
			pace := time.NewTicker(c.lasts * hands / time.Duration(c.jobs))
			defer pace.Stop()
			for n := i; n < c.jobs && ctx.Err() == nil; n += hands {
				<-pace.C
				w := wish{after: time.Millisecond + rand.N(min(4*time.Second, c.ahead)),
					far: rand.N(10) == 0, loose: rand.N(2) == 0}
				if rand.N(3) == 0 {
					w.after = time.Millisecond + rand.N(c.ahead)
				}
				c.once(ctx, w)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	return done
}

// fault kills or freezes one of the crew.
func (c *chaos) fault(t *testing.T, thaws *sync.WaitGroup) {
	t.Helper()
	h := c.any()
	c.working(t, h)
	c.mu.Lock()
	still, others := c.frozen[h.name], len(c.frozen)
	c.mu.Unlock()
	switch {
	case still && rand.N(4) > 0:
	case still, others > 0 && !c.brief && others >= len(c.crew)/2, c.kills <= c.stops:
		c.bury(h)
		c.hire(t, h.kind)
	default:
		c.stops++
		c.mu.Lock()
		c.frozen[h.name] = true
		c.mu.Unlock()
		from := time.Now()
		if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		thaws.Go(func() {
			time.Sleep(c.freeze[0] + rand.N(c.freeze[1]-c.freeze[0]))
			_ = h.cmd.Process.Signal(syscall.SIGCONT) // the test may be over
			c.mu.Lock()
			defer c.mu.Unlock()
			c.freezes[h.name] = append(c.freezes[h.name], span{from, time.Now()})
			delete(c.frozen, h.name) // it may have been killed, too
		})
	}
	if c.brief {
		c.hasten(t)
	}
}

// working waits until a worker has a job, or for a while.
func (c *chaos) working(t *testing.T, h *hand) {
	t.Helper()
	for deadline := time.Now().Add(c.pause); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if c.count(t, `SELECT count(*) FROM river_job WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1`, h.name) > 0 {
			return
		}
	}
}

// bury kills one of the crew.
func (c *chaos) bury(h *hand) {
	c.fire(h)
	c.deaths[h.name] = time.Now()
	c.kills++
}

// hasten does what River's rescuer would do some time later, with what the dead have left: and,
// where its time is shorter than a freeze, the frozen.
func (c *chaos) hasten(t *testing.T) {
	t.Helper()
	c.age(t, ageLeader)
	c.mu.Lock()
	var living []string
	for name := range c.crew {
		if !c.frozen[name] || c.rescue > c.freeze[1] {
			living = append(living, name)
		}
	}
	c.mu.Unlock()
	c.rescueBut(t, living)
}

// finish waits until all jobs are completed; those that are not, the counts show.
func (c *chaos) finish(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(8 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if c.count(t, unfinished) == 0 {
			return
		}
		if c.brief {
			c.hasten(t)
		}
	}
}
