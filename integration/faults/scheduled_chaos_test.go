package faults

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

// Under kills and freezes no job starts early, none is lost, and none is completed without having been worked, on clients with
// the plugin and without. And none is worked twice, except by River's rescue: because its first worker was killed, or frozen
// for longer than RescueStuckJobsAfter. The freezes here are shorter.
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

// With a rescue that is shorter than a freeze, River gives a job to a second worker while the first one is about to go on, and
// writes what has become of either attempt by the job's id. So River by itself works jobs twice, and this looks at no more
// than what it promises all the same. The counts stand next to those of River without any plugin.
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
				w := wish{after: time.Millisecond + rand.N(min(4*time.Second, c.ahead)), far: rand.N(10) == 0, loose: rand.N(2) == 0}
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

// hasten does what River's rescuer would do some time later, with what the dead have left: and, where its time is shorter than
// a freeze, the frozen.
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

// findings are counts of jobs, from the database.
type findings struct {
	jobs, starts, byPlain   int
	early, lost, unworked   int // started before the time in their rows; not completed; completed without having been worked
	unplanned               int // not reserved
	rescued, lapsed         int
	startedAgain, doneAgain int
	afterKill, afterFreeze  int // starts that are explained by what became of the worker of the one before
	unexplained             []string
	p50, p95, latest        float64
}

func (f *findings) String() string {
	return fmt.Sprintf("%d jobs, %d starts (%d by plain clients): %d early, %d lost, %d completed without having been worked; %d rescued by River, "+
		"%d started again, %d done again; %d starts repeated after a kill and %d after a freeze, %d unexplained; %d attempts failed; late by p50 %.3f s, p95 %.3f s, at most %.3f s",
		f.jobs, f.starts, f.byPlain, f.early, f.lost, f.unworked, f.rescued, f.startedAgain, f.doneAgain, f.afterKill, f.afterFreeze, len(f.unexplained),
		f.lapsed, f.p50, f.p95, f.latest)
}

const findingsSQL = `SELECT
	(SELECT count(*) FROM plan),
	(SELECT count(*) FROM start),
	(SELECT count(*) FROM start WHERE worker LIKE 'plain%'),
	(SELECT count(*) FROM start s JOIN plan p USING (job) WHERE s.at < p.due),
	(SELECT count(*) FROM plan p LEFT JOIN river_job j ON j.id = p.job WHERE j.state IS DISTINCT FROM 'completed'),
	(SELECT count(*) FROM river_job j WHERE state = 'completed' AND NOT EXISTS (SELECT FROM done WHERE job = j.id)),
	(SELECT count(*) FROM (SELECT id FROM river_job UNION SELECT job FROM start EXCEPT SELECT job FROM plan) x),
	(SELECT count(*) FROM river_job WHERE metadata ? 'river:rescue_count'),
	(SELECT count(*) FROM (SELECT FROM start GROUP BY job HAVING count(*) > 1) x),
	(SELECT count(*) FROM (SELECT FROM done GROUP BY job HAVING count(*) > 1) x)`

// latenessSQL is for the record.
const latenessSQL = `SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY late), 0), coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY late), 0), coalesce(max(late), 0)
FROM (SELECT extract(epoch FROM min(s.at) - p.due)::float8 AS late FROM start s JOIN plan p USING (job) GROUP BY p.job, p.due) x`

func (c *chaos) counts(t *testing.T) *findings {
	t.Helper()
	f := &findings{}
	again := map[int64][]began{}
	c.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, findingsSQL).Scan(&f.jobs, &f.starts, &f.byPlain, &f.early, &f.lost, &f.unworked, &f.unplanned,
			&f.rescued, &f.startedAgain, &f.doneAgain); err != nil {
			return err
		}
		if err := conn.QueryRow(ctx, latenessSQL).Scan(&f.p50, &f.p95, &f.latest); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `SELECT job, attempt, worker, at FROM start WHERE job IN (SELECT job FROM start GROUP BY job HAVING count(*) > 1)`)
		if err != nil {
			return err
		}
		var b began
		_, err = pgx.ForEachRow(rows, []any{&b.job, &b.number, &b.worker, &b.at}, func() error {
			again[b.job] = append(again[b.job], b)
			return nil
		})
		return err
	})
	c.shift.mu.Lock()
	f.lapsed = len(c.lapses)
	c.shift.mu.Unlock()
	for _, starts := range again {
		c.explain(f, starts)
	}
	slices.Sort(f.unexplained)
	return f
}

// explain looks at the starts of one job: after each but the last its worker was killed, or frozen for so long that River
// rescued the job, or it says that its attempt failed as the database did not answer it in time. A plain client that starts
// an attempt after the next one has started had fetched it long before, and stood still: the machine was slow, or it was
// frozen. Nothing in River looks whether the job is still its own. Weir's clients do.
func (c *chaos) explain(f *findings, starts []began) {
	slices.SortFunc(starts, func(a, b began) int { return cmp.Or(cmp.Compare(a.number, b.number), a.at.Compare(b.at)) })
	for i, s := range starts[:len(starts)-1] {
		death, dead := c.deaths[s.worker]
		switch {
		case starts[i+1].number == s.number:
			f.unexplained = append(f.unexplained, fmt.Sprintf("job %d started twice as attempt %d, by %s and by %s", s.job, s.number, s.worker, starts[i+1].worker))
		case dead && death.Before(starts[i+1].at): // its server process may have written the start a moment after that
			f.afterKill++
		case slices.ContainsFunc(c.freezes[s.worker], func(z span) bool {
			return z.to.After(s.at) && z.from.Before(starts[i+1].at) && z.to.Sub(z.from) > c.rescue-time.Second
		}):
			f.afterFreeze++
		case s.at.After(starts[i+1].at) && strings.HasPrefix(s.worker, string(plain)):
			f.afterFreeze++
		case c.lapses[s.attempt].Class == gaveUp: // it is among those that are counted as failed
		default:
			f.unexplained = append(f.unexplained, fmt.Sprintf("job %d started again %v after %s had started it as attempt %d: killed at %v, frozen %v; %v",
				s.job, starts[i+1].at.Sub(s.at), s.worker, s.number, death, c.freezes[s.worker], c.lapses[s.attempt]))
		}
	}
}

func TestChaosExplainsSecondStarts(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	c := &chaos{
		shift:   &shift{lapses: map[attempt]lapse{{3, 1, "slow"}: {3, 1, gaveUp, "i/o timeout"}, {3, 1, "odd"}: {3, 1, away, "EOF"}}},
		rescue:  time.Minute,
		deaths:  map[string]time.Time{"dead": at(5), "late": at(201)},
		freezes: map[string][]span{"cold": {{at(0), at(50)}, {at(100), at(161)}}},
	}
	for name, x := range map[string]struct {
		first             began
		second            int
		kill, freeze, not int
	}{
		"Killed":          {began{attempt{1, 1, "dead"}, at(4)}, 2, 1, 0, 0},
		"KilledJustNow":   {began{attempt{1, 1, "dead"}, at(6)}, 2, 1, 0, 0},
		"KilledLater":     {began{attempt{1, 1, "late"}, at(4)}, 2, 0, 0, 1},
		"Frozen":          {began{attempt{1, 1, "cold"}, at(99)}, 2, 0, 1, 0},
		"FrozenBefore":    {began{attempt{1, 1, "cold"}, at(162)}, 2, 0, 0, 1},
		"FrozenShortly":   {began{attempt{1, 1, "alive"}, at(40)}, 2, 0, 0, 1},
		"PlainStoodStill": {began{attempt{1, 1, "plain-9"}, at(201)}, 2, 0, 1, 0},
		"StoodStill":      {began{attempt{1, 1, "careful-9"}, at(201)}, 2, 0, 0, 1},
		"GaveUp":          {began{attempt{3, 1, "slow"}, at(4)}, 2, 0, 0, 0},
		"FailedOtherwise": {began{attempt{3, 1, "odd"}, at(4)}, 2, 0, 0, 1},
		"TheSameAttempt":  {began{attempt{1, 1, "dead"}, at(4)}, 1, 0, 0, 1},
	} {
		f := &findings{}
		c.explain(f, []began{{attempt{1, x.second, "alive"}, at(200)}, x.first})
		if f.afterKill != x.kill || f.afterFreeze != x.freeze || len(f.unexplained) != x.not {
			t.Errorf("%s: %v: %q", name, f, f.unexplained)
		}
	}
}
