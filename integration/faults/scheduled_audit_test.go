package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// attempt is one of a job's, at a worker.
type attempt struct {
	job    int64
	number int
	worker string
}

// plan is a reservation that was committed.
type plan struct {
	id  string
	job int64
	due time.Time
}

// row is one of river_job.
type row struct {
	job   int64
	id    string // in its arguments
	state string
	by    string // the last client that fetched it
	more  string // what is printed besides if the job is unfinished
}

type began struct {
	attempt
	at time.Time
}

// ledger is what the database has of scheduled work.
type ledger struct {
	plans  []plan
	rows   []row
	starts []began
	dones  []attempt
}

// told is what is known otherwise.
type told struct {
	records map[string]*record // what those were told who reserved
	killed  map[string]bool    // the workers that a fault killed
	lapses  map[attempt]lapse  // the attempts of which their workers say that they failed
	server  bool               // it went away
	slots   bool               // an attempt whose slot is lost is repeated
}

// finding is what an audit of scheduled work has found.
type finding struct {
	violations     []string
	late           []time.Duration // of each job's first start, in ascending order
	kills, outages int             // starts that had to be repeated, as the worker was killed or the server went away
	overtime       int             // and as the attempt took longer than River allows
}

// review returns what is wrong with scheduled work after it has settled.
func review(l *ledger, k *told) *finding {
	f := &finding{}
	say := func(format string, args ...any) { f.violations = append(f.violations, fmt.Sprintf(format, args...)) }
	plans, planned := map[int64]plan{}, map[string]int{}
	for _, p := range l.plans {
		plans[p.job] = p
		planned[p.id]++
	}

	rows := map[int64]row{}
	jobs := map[string]int{}
	for _, r := range l.rows {
		rows[r.job] = r
		jobs[r.id]++
		if planned[r.id] == 0 {
			say("job %d of %s: nothing was reserved", r.job, r.id)
		}
		if r.state != "completed" {
			say("job %d is %s in the end, last fetched by %s%s", r.job, r.state, cmp.Or(r.by, "nobody"), r.more)
		}
	}
	for id, n := range planned {
		if n != 1 || jobs[id] != 1 {
			say("%s: %d jobs for %d reservations", id, jobs[id], n)
		}
		if k.records[id] == nil {
			say("%s: nobody asked for it", id)
		}
	}
	for id, r := range k.records {
		switch {
		case r.class == granted && planned[id] == 0:
			say("%s: its caller got nil, and there is nothing of it", id)
		case r.class.final() && planned[id] > 0:
			say("%s: its caller got an error (%s: %s), and it was committed", id, r.class, r.text)
		}
	}

	dones := map[int64]int{}
	for _, d := range l.dones {
		dones[d.job]++
	}
	starts := map[int64][]began{}
	for _, s := range l.starts {
		starts[s.job] = append(starts[s.job], s)
	}
	for _, p := range l.plans {
		if r, has := rows[p.job]; !has || r.id != p.id {
			say("%s: its job %d does not exist", p.id, p.job)
		}
		if n := dones[p.job]; n != 1 {
			say("job %d was done %d times", p.job, n)
		}
		f.starts(p, starts[p.job], k, say)
	}
	for _, s := range l.starts {
		if _, has := plans[s.job]; !has {
			say("job %d started, and was not reserved", s.job)
		}
	}
	slices.Sort(f.violations)
	slices.Sort(f.late)
	return f
}

// starts looks at those of one job.
func (f *finding) starts(p plan, starts []began, k *told, say func(string, ...any)) {
	slices.SortFunc(starts, func(a, b began) int { return a.at.Compare(b.at) })
	numbers := map[int]bool{}
	for i, s := range starts {
		late := s.at.Sub(p.due)
		if late < 0 {
			say("job %d started %v before it was due, by %s, attempt %d", p.job, -late, s.worker, s.number)
		}
		// put back, and not by River's rescue
		if numbers[s.number] && (!k.slots || k.lapses[starts[i-1].attempt].Class != gaveUp) {
			say("job %d started twice as attempt %d, the second time by %s", p.job, s.number, s.worker)
		}
		numbers[s.number] = true
		if i == 0 {
			f.late = append(f.late, late)
		}
		if i == len(starts)-1 {
			break
		}
		switch failed := k.lapses[s.attempt].Class; {
		case k.killed[s.worker]:
			f.kills++
		case k.server && (failed == away || failed == unknown):
			f.outages++
		case failed == gaveUp: // at the JobTimeout, on a busy machine
			f.overtime++
		default:
			say("job %d started again %v after %s, which lives, had started it as attempt %d (%s: %s)", p.job,
				starts[i+1].at.Sub(s.at), s.worker, s.number, failed, k.lapses[s.attempt].Text)
		}
	}
}

// orderly is a small ledger in which all is well.
func orderly() (*ledger, *told) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	l := &ledger{
		plans: []plan{{"a", 1, at(0)}, {"b", 2, at(1)}, {"c", 3, at(2)}},
		rows: []row{
			{1, "a", "completed", "alive", ""},
			{2, "b", "completed", "alive", ""},
			{3, "c", "completed", "dead", ""},
		},
		starts: []began{
			{attempt{1, 1, "alive"}, at(0)},
			{attempt{2, 1, "dead"}, at(2)}, {attempt{2, 2, "alive"}, at(3)}, {attempt{2, 3, "alive"}, at(4)},
			{attempt{3, 1, "dead"}, at(3)},
		},
		dones: []attempt{{1, 1, "alive"}, {2, 3, "alive"}, {3, 1, "dead"}},
	}
	k := &told{
		records: map[string]*record{"a": {class: granted}, "b": {class: unknown},
			"c": {class: open}, "d": {class: away}},
		killed: map[string]bool{"dead": true},
		lapses: map[attempt]lapse{{2, 2, "alive"}: {2, 2, away, "EOF"}},
		server: true,
	}
	return l, k
}

func TestTheAuditOfScheduledWorkFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	if f := review(orderly()); len(f.violations) > 0 || f.kills != 1 || f.outages != 1 || len(f.late) != 3 {
		t.Fatalf("where all is well: %+v", f)
	}
	for name, c := range map[string]struct {
		spoil func(l *ledger, k *told)
		want  string
	}{
		"Early": {func(l *ledger, _ *told) {
			l.starts[0].at = l.starts[0].at.Add(-time.Microsecond)
		}, "job 1 started 1µs before it was due"},
		"EarlyAgain":   {func(l *ledger, _ *told) { l.plans[1].due = l.plans[1].due.Add(90 * time.Minute) }, "by alive, attempt 3"},
		"NeverDone":    {func(l *ledger, _ *told) { l.dones = l.dones[1:] }, "job 1 was done 0 times"},
		"DoneTwice":    {func(l *ledger, _ *told) { l.dones = append(l.dones, l.dones[0]) }, "job 1 was done 2 times"},
		"NotCompleted": {func(l *ledger, _ *told) { l.rows[0].state = "running" }, "job 1 is running in the end"},
		"JobLost":      {func(l *ledger, _ *told) { l.rows = l.rows[1:] }, "a: 0 jobs for 1 reservations"},
		"JobTwice": {func(l *ledger, _ *told) {
			l.rows = append(l.rows, row{4, "a", "completed", "", ""})
		}, "a: 2 jobs for 1 reservations"},
		"JobOfAnother":    {func(l *ledger, _ *told) { l.rows[0].id = "b" }, "a: its job 1 does not exist"},
		"JobForNothing":   {func(l *ledger, _ *told) { l.plans = l.plans[1:] }, "job 1 of a: nothing was reserved"},
		"StartForNothing": {func(l *ledger, _ *told) { l.starts[0].job = 9 }, "job 9 started, and was not reserved"},
		"GrantLost":       {func(_ *ledger, k *told) { k.records["d"].class = granted }, "d: its caller got nil"},
		"ErrorCommitted":  {func(_ *ledger, k *told) { k.records["a"].class = away }, "a: its caller got an error"},
		"NobodyAsked":     {func(_ *ledger, k *told) { delete(k.records, "a") }, "a: nobody asked for it"},
		"NotKilled":       {func(_ *ledger, k *told) { clear(k.killed) }, "job 2 started again 1s after dead, which lives"},
		"ServerStayed":    {func(_ *ledger, k *told) { k.server = false }, "job 2 started again 1s after alive, which lives"},
		"NothingFailed":   {func(_ *ledger, k *told) { clear(k.lapses) }, "job 2 started again 1s after alive, which lives"},
		"SameAttempt":     {func(l *ledger, _ *told) { l.starts[2].number = 1 }, "job 2 started twice as attempt 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, k := orderly()
			c.spoil(l, k)
			if v := review(l, k).violations; !strings.Contains(strings.Join(v, "\n"), c.want) {
				t.Errorf("found %q, want %q", v, c.want)
			}
		})
	}
}
