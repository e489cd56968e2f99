package scheduler_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Behind the scheduler's back.
func TestJobsThatAreCancelledOrDeletedByOthersGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(f *fixture, id int64) error{
		"Cancelled": func(f *fixture, id int64) error {
			_, err := f.client.JobCancel(context.Background(), id)
			return err
		},
		"Deleted": func(f *fixture, id int64) error {
			_, err := f.client.JobDelete(context.Background(), id)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			jobs := sched.Jobs(j.client(t, sched))
			limit := ratelimit.MustDefine("behindOthers",
				ratelimit.TokenBucket{Rate: 2, Period: time.Second, Capacity: ratelimit.Tokens(10)})
			var ids []int64
			var dues []time.Time
			for i, n := range []float64{10, 90, 10, 10} { // at 0, 45, 50, 55 s
				job := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(n).OrReserve()).Job.Job
				ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
			}
			j.await(t, 1)
			f.seen(t)
			if err := remove(f, ids[1]); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it gives back what it took", func() bool { return f.settlements(t) == 1 })
			moved := dues[3].Add(-45 * time.Second)
			j.startsBefore(t, ids[3], moved, dues[1])
			// By the times in the rows: a round that comes just before its time has the one before it
			// start then, too.
			started := slices.Clone(j.await(t, 3))
			slices.SortStableFunc(started, func(a, b start) int { return a.due.Compare(b.due) })
			if started[2].id != ids[3] {
				t.Errorf("the last job was due at %v, and started as %+v: want it about %v", dues[3], started[2], moved)
			}
			if n := len(j.await(t, 3)); n != 3 || f.settlements(t) != 1 {
				t.Errorf("%d starts, %d settlements", n, f.settlements(t))
			}
		})
	}
}

// Between two looks for jobs that have gone, a round can move a job up. The job is worked then, and
// deleted, before the time at which it was due when a round last looked.
func TestAJobThatWasWorkedAndThenDeletedKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	const n = 120
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("workedAndDeleted",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	settles := j.settles(func(int) ratelimit.Request { return limit.For("k").Count(0) })
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N%2 == 0 {
			return settles(ctx, job) // it has used nothing: those behind it are moved up
		}
		return nil
	}
	client := j.client(t, sched)
	f.insertTogether(t, sched.Jobs(client), n, limit.For("k").OrReserve())
	const deleteSQL = `DELETE FROM river_job WHERE state = 'completed' AND (args->>'n')::int % 2 = 1`
	deleted := 0
	eventually(t, "every second job is deleted", func() bool {
		tag, err := f.pool.Exec(t.Context(), deleteSQL)
		if err != nil {
			t.Fatal(err)
		}
		deleted += int(tag.RowsAffected())
		return deleted == n/2
	})
	f.seen(t)
	if got := f.settlements(t); got != n/2 {
		t.Errorf("%d settlements, want only those of the %d workers that settle", got, n/2)
	}
}

// While another client does the rounds, it can move a job up. The job is worked then, and deleted,
// before the time at which it was due when this client last looked.
func TestAJobThatIsDeletedWhileTheTurnWasAnotherClientsKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "rows of a cluster do not tell who has locked them")
	f, sched, j := exact(t)
	jobs := sched.Jobs(j.client(t, sched))
	limit := ratelimit.MustDefine("another's turn",
		ratelimit.TokenBucket{Rate: 100, Period: time.Hour, Capacity: ratelimit.Tokens(0)})
	id := f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve()).Job.Job.ID
	f.seen(t)
	const turn = ` WHERE name = 'weir scheduler'`
	f.exec(t, `UPDATE weir_slot SET holder = gen_random_uuid(), until = now() + interval '1 hour'`+turn)
	eventually(t, "this client asks for its turn, and so locks the row", func() (asked bool) {
		const sql = `SELECT xmax <> '0' FROM weir_slot` + turn
		if err := f.pool.QueryRow(t.Context(), sql).Scan(&asked); err != nil {
			t.Fatal(err)
		}
		return asked
	})
	if _, err := f.client.JobDelete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	f.exec(t, `UPDATE weir_slot SET until = now()`+turn)
	f.seen(t)
	if n := f.settlements(t); n != 0 {
		t.Errorf("%d jobs have given back what they took, want none", n)
	}
}

// Metadata is anybody's: a due time that is no time is no ticket, and keeps nobody from looking
// after the others.
func TestOddMetadataHoldsUpNothing(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]string{
		"Number": `{"due":1e300}`, "Past": `{"due":-9e18}`, "Text": `{"due":"soon"}`,
		"NUL": `{"more":"{\"v\":1,\"due\":1,\"on\":[[\"a\\u0000\",\"k\"]]}"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			opts := &river.InsertOpts{Metadata: []byte(`{"weir":` + odd + `}`),
				ScheduledAt: time.Now().Add(time.Hour)}
			if _, err := f.client.Insert(t.Context(), sendArgs{1}, opts); err != nil {
				t.Fatal(err)
			}
			jobs := sched.Jobs(j.client(t, sched))
			limit := ratelimit.MustDefine("odd",
				ratelimit.TokenBucket{Rate: 100, Period: time.Hour, Capacity: ratelimit.Tokens(0)})
			id := f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve()).Job.Job.ID
			f.seen(t)
			if _, err := f.client.JobDelete(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(patience)
			for f.settlements(t) == 0 && time.Now().Before(deadline) {
				time.Sleep(50 * time.Millisecond)
			}
			if n := f.settlements(t); n != 1 {
				t.Errorf("%d settlements", n)
			}
		})
	}
}

// However many were cancelled in one transaction, long before a client looks.
func TestAllThatWereCancelledTogetherGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	const n = 1002 // more than are read at once
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("cancelledTogether",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(n)})
	var params []scheduler.InsertManyParams
	for i := range n {
		params = append(params, scheduler.InsertManyParams{Args: sendArgs{i},
			InsertOpts: &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)},
			Requests:   []ratelimit.Request{limit.Global()}})
	}
	if _, err := sched.Jobs(f.client).InsertMany(t.Context(), f.pool, params); err != nil {
		t.Fatal(err)
	}
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job
		SET state = 'cancelled', finalized_at = now() - interval '15 min'`); err != nil {
		t.Fatal(err)
	}
	j.client(t, sched)
	eventually(t, "all tokens are there", func() bool {
		time.Sleep(100 * time.Millisecond) // a look takes time from the rounds, on a busy machine
		return f.left(t, limit.Global()) > n-0.5
	})
}

// Nor do jobs of other limits wait until all have, however long that takes.
func TestJobsThatWereCancelledTogetherHoldUpNoOther(t *testing.T) {
	t.Parallel()
	const n = 200
	f, sched, _ := exact(t)
	limit := ratelimit.MustDefine("cancelledFarAway",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(n)})
	params := make([]scheduler.InsertManyParams, n)
	for i := range params {
		params[i] = scheduler.InsertManyParams{Args: sendArgs{i},
			InsertOpts: &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)},
			Requests:   []ratelimit.Request{limit.Global()}}
	}
	if _, err := sched.Jobs(f.client).InsertMany(t.Context(), f.pool, params); err != nil {
		t.Fatal(err)
	}
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'cancelled', finalized_at = now()`); err != nil {
		t.Fatal(err)
	}
	k := ratelimit.MustDefine("another",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)}).For("k")
	large, next := f.reserveOn(t, -1, nil, k.Count(3600)), f.reserveOn(t, -2, nil, k.Count(1))

	away := *f // with the client's own pool
	away.pool = rig.Through(t, f.pool, rig.Far(t, f.pool, 5*time.Millisecond))
	j := newJournal(&away)
	j.client(t, sched)
	eventually(t, "some have given back", func() bool { return f.left(t, limit.Global()) > 0.5 })
	f.cancel(t, sched.Jobs(f.client), large.ID)
	j.startsBefore(t, next.ID, next.ScheduledAt.Add(-time.Hour), next.ScheduledAt)
	if left := f.left(t, limit.Global()); left > n-1 {
		t.Error("it started when all had given back")
	}
	eventually(t, "all have given back", func() bool {
		time.Sleep(100 * time.Millisecond)
		return f.left(t, limit.Global()) > n-0.5
	})
}

// A job that is retried by hand while a round gives back what it took keeps it.
func TestAJobThatIsRetriedMeanwhileKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("retriedByHand",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(10)})
	opts := &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)}
	var id int64
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		in, err := sched.Jobs(f.client).InsertTx(ctx, tx, sendArgs{0}, opts, limit.Global().Count(5))
		if err == nil {
			id = in.Job.Job.ID
		}
		return err
	})
	if _, err := f.pool.Exec(t.Context(),
		`UPDATE river_job SET state = 'cancelled', finalized_at = now()`); err != nil {
		t.Fatal(err)
	}
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `UPDATE river_job SET state = 'scheduled', finalized_at = NULL`); err != nil {
		t.Fatal(err)
	}
	j.client(t, sched)
	eventually(t, "a round waits for the job", func() bool { return rig.IsWaitedFor(t, f.pool, tx) })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.roundHasPassed(t)
	f.roundHasPassed(t)
	if got := f.left(t, limit.Global()); got > 5.1 || f.job(t, id).State != rivertype.JobStateScheduled {
		t.Errorf("%v left, want 5", got)
	}
}

// Somebody who holds the balance of one key has only the jobs of that key wait for what they give
// back: jobs that were cancelled later, and those that were deleted, too.
func TestAHeldBalanceHoldsUpNoOtherJobThatHasGone(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("heldGone",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(10)})
	jobs, opts := sched.Jobs(j.client(t, sched)), &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)}
	insert := func(n int, key string) (id int64) {
		t.Helper()
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			in, err := jobs.InsertTx(ctx, tx, sendArgs{n}, opts, limit.For(key))
			if err == nil {
				id = in.Job.Job.ID
			}
			return err
		})
		return id
	}
	cancelled := []int64{insert(0, "held"), insert(1, "held"), insert(2, "a")}
	deleted := []int64{insert(3, "held"), insert(4, "b")}
	f.seen(t)
	tx := f.hold(t, limit.For("held"))
	for _, id := range cancelled {
		if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'cancelled',
			finalized_at = now() - interval '15 min' WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range deleted {
		if _, err := f.client.JobDelete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "those of other keys give back what they took", func() bool { return f.settlements(t) == 2 })
	f.seen(t) // and meets the others once more
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all do", func() bool { return f.settlements(t) == 5 })
	if got := f.left(t, limit.For("held")); got < 10-1e-6 {
		t.Errorf("%v left, want all 10", got)
	}
}

// What keeps one job that has gone from giving back keeps no other one from it.
func TestJobsThatHaveGoneGiveBackEachForItself(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	limit := ratelimit.MustDefine("each gone",
		ratelimit.TokenBucket{Rate: 100, Period: time.Hour, Capacity: ratelimit.Tokens(0)})
	for name, gone := range map[string]func(f *fixture, id int64) error{
		"Deleted":   func(f *fixture, id int64) error { _, err := f.client.JobDelete(t.Context(), id); return err },
		"Cancelled": func(f *fixture, id int64) error { _, err := f.client.JobCancel(t.Context(), id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			jobs := sched.Jobs(j.client(t, sched))
			var ids []int64
			for i := range 4 {
				ids = append(ids, f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(100).OrReserve()).Job.Job.ID)
			}
			f.seen(t)
			f.exec(t, `
				CREATE SEQUENCE refusals;
				CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF nextval('refusals') = 1 THEN
						RAISE 'not now';
					END IF;
					RETURN NEW;
				END $$;
				CREATE TRIGGER refuse BEFORE INSERT ON weir_settled FOR EACH ROW EXECUTE FUNCTION refuse()`)
			for _, id := range ids {
				if err := gone(f, id); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "all have given back", func() bool { return f.settlements(t) == len(ids) })
		})
	}
	t.Run("CancelledForGood", func(t *testing.T) {
		t.Parallel()
		f, sched, j := exact(t)
		jobs := sched.Jobs(j.client(t, sched))
		bad := f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve()).Job.Job.ID
		good := f.insertBy(t, jobs, sendArgs{1}, limit.For("other").Count(100).OrReserve()).Job.Job.ID
		f.exec(t, `
			CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON river_job FOR EACH ROW
			WHEN (OLD.state = 'cancelled' AND OLD.args @> '{"n":0}') EXECUTE FUNCTION refuse()`)
		for _, id := range []int64{bad, good} {
			if _, err := f.client.JobCancel(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the other one has given back", func() bool { return f.settlements(t) == 1 })
	})
}
