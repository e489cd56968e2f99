package faults

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// findings are counts of jobs, from the database.
type findings struct {
	jobs, starts, byPlain int
	// started before the time in their rows; not completed; completed without having been worked
	early, lost, unworked   int
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
		f.jobs, f.starts, f.byPlain, f.early, f.lost, f.unworked, f.rescued, f.startedAgain,
		f.doneAgain, f.afterKill, f.afterFreeze, len(f.unexplained),
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
		if err := conn.QueryRow(ctx, findingsSQL).Scan(&f.jobs, &f.starts, &f.byPlain, &f.early,
			&f.lost, &f.unworked, &f.unplanned,
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

// explain looks at the starts of one job: after each but the last its worker was killed, or frozen
// for so long that River rescued the job, or it says that its attempt failed as the database did
// not answer it in time. A plain client that starts an attempt after the next one has started had
// fetched it long before, and stood still: the machine was slow, or it was frozen. Nothing in River
// looks whether the job is still its own. Weir's clients do.
func (c *chaos) explain(f *findings, starts []began) {
	slices.SortFunc(starts, func(a, b began) int { return cmp.Or(cmp.Compare(a.number, b.number), a.at.Compare(b.at)) })
	for i, s := range starts[:len(starts)-1] {
		death, dead := c.deaths[s.worker]
		switch {
		case starts[i+1].number == s.number:
			f.unexplained = append(f.unexplained,
				fmt.Sprintf("job %d started twice as attempt %d, by %s and by %s", s.job, s.number,
					s.worker, starts[i+1].worker))
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
			f.unexplained = append(f.unexplained,
				fmt.Sprintf("job %d started again %v after %s had started it as attempt %d: killed at %v, frozen %v; %v",
					s.job, starts[i+1].at.Sub(s.at), s.worker, s.number, death, c.freezes[s.worker],
					c.lapses[s.attempt]))
		}
	}
}

func TestChaosExplainsSecondStarts(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	c := &chaos{
		shift: &shift{lapses: map[attempt]lapse{{3, 1, "slow"}: {3, 1, gaveUp, "i/o timeout"},
			{3, 1, "odd"}: {3, 1, away, "EOF"}}},
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
