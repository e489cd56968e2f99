package scheduler_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// versionsOf are the row versions of jobs that wait, except one, as a transaction sees them.
func versionsOf(t *testing.T, tx pgx.Tx, except int64) (versions string) {
	t.Helper()
	const sql = `SELECT coalesce(string_agg(concat_ws(' ', id, xmin, ctid, scheduled_at), ', ' ORDER BY id), '')
		FROM river_job WHERE state IN ('available', 'scheduled') AND id <> $1`
	if err := tx.QueryRow(t.Context(), sql, except).Scan(&versions); err != nil {
		t.Fatal(err)
	}
	return versions
}

// writesNoOther checks that do, in a transaction, writes to no waiting job but one.
func (f *fixture) writesNoOther(t *testing.T, what string, id int64, do func(tx pgx.Tx) (bool, error)) {
	t.Helper()
	var before, within, after string
	f.inRC(t, func(tx pgx.Tx) error {
		before = versionsOf(t, tx, id)
		done, err := do(tx)
		if err == nil && !done {
			t.Errorf("%s: nothing was given back", what)
		}
		if err == nil {
			within = versionsOf(t, tx, id)
		}
		return err
	})
	f.inRC(t, func(tx pgx.Tx) error { after = versionsOf(t, tx, id); return nil })
	if before == "" || within != before || after != before {
		t.Errorf("%s: the jobs that wait were\n%s in the transaction\n%s and after it\n%s", what, before, within, after)
	}
}

// What gives tokens back writes no row of the jobs behind it: a round moves these up later.
func TestTheCallersTransactionWritesNoJobThatWaits(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	limit := ratelimit.MustDefine("behind",
		ratelimit.TokenBucket{Rate: 1, Period: 10 * time.Second, Capacity: ratelimit.Tokens(0)})
	jobs := sched.Jobs(f.client) // which works none, and does no rounds
	all := f.insertTogether(t, jobs, 10, limit.For("k").Count(3).OrReserve())
	used := limit.For("k").Count(1)
	for i, c := range []struct {
		name string
		do   func(tx pgx.Tx, job *scheduler.Inserted, r ratelimit.Reservation) (bool, error)
	}{
		{"Settle", func(tx pgx.Tx, _ *scheduler.Inserted, r ratelimit.Reservation) (bool, error) {
			return f.limiter.Settle(t.Context(), tx, r, used)
		}},
		{"Release", func(tx pgx.Tx, _ *scheduler.Inserted, r ratelimit.Reservation) (bool, error) {
			return f.limiter.Release(t.Context(), tx, r)
		}},
		{"SettleTx", func(tx pgx.Tx, job *scheduler.Inserted, _ ratelimit.Reservation) (bool, error) {
			return jobs.SettleTx(t.Context(), tx, job.Job.Job, used)
		}},
		{"CancelTx", func(tx pgx.Tx, job *scheduler.Inserted, _ ratelimit.Reservation) (bool, error) {
			_, err := jobs.CancelTx(t.Context(), tx, job.Job.Job.ID)
			return true, err
		}},
	} {
		r, ok := scheduler.ReservationOf(all[i].Job.Job)
		if !ok {
			t.Fatal("nothing is reserved")
		}
		id := all[i].Job.Job.ID
		f.writesNoOther(t, c.name, id, func(tx pgx.Tx) (bool, error) { return c.do(tx, all[i], r) })
	}
}

// Nor does it write to those that wait for their turns in a fair line.
func TestTheCallersTransactionWritesNoJobInLine(t *testing.T) {
	t.Parallel()
	limit := store(t, 10)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 5, nil, limit.Global().Count(4))
	s.round()
	turns := s.granted()
	if len(turns) == 0 || len(turns) == 5 {
		t.Fatalf("%d of 5 jobs had their turns", len(turns))
	}
	job, jobs := s.job(t, turns[0].id), s.sched.Jobs(s.client)
	s.writesNoOther(t, "SettleTx", job.ID, func(tx pgx.Tx) (bool, error) {
		return jobs.SettleTx(t.Context(), tx, job, limit.Global().Count(1))
	})
}
