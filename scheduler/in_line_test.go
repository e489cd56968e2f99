package scheduler_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// inLineOf lists a line in a transaction that cannot write.
func (s *stepped) inLineOf(jobs *scheduler.Jobs, limit ratelimit.Limit, n int) (next []scheduler.Waiting, more bool) {
	s.t.Helper()
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(s.t.Context(), s.pool, opts, func(tx pgx.Tx) (err error) {
		next, more, err = jobs.InLine(s.t.Context(), tx, limit.Name(), "", n)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return next, more
}

func idsOf(list []scheduler.Waiting) (ids []int64) {
	for _, w := range list {
		ids = append(ids, w.Job.ID)
	}
	return ids
}

// Jobs have their turns in the order in which they are listed.
func TestJobsAreGrantedInTheOrderInWhichTheyAreListed(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]scheduler.Line{
		"by default":      {},
		"little patience": {Patience: time.Minute},
		"over all":        {OverAll: true, Patience: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line.Limit = store(t, 10_000)
			s := steppedLines(t, line)
			seed := uint64(time.Now().UnixNano())
			t.Log("seed", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			come := func(tenant string, n int) {
				weight := []float64{0.5, 1, 1, 3}[random.IntN(4)]
				for range n {
					// No job changes its level within the half hour after this.
					due := time.Now().Add(-time.Duration(random.IntN(4))*time.Hour - 30*time.Minute)
					opts := &river.InsertOpts{Priority: 1 + random.IntN(4),
						ScheduledAt: due.Add(time.Duration(random.IntN(600)) * time.Second)}
					s.wait(scheduler.Tenant{Key: tenant, Weight: weight}, 1, opts,
						line.Limit.Global().Count(float64(1+random.IntN(30))))
				}
			}
			for i := range 4 {
				come(fmt.Sprint("tenant ", i), 5+random.IntN(10))
			}
			for range 4 {
				for _, g := range s.step() {
					if random.IntN(2) == 0 { // corrections wait to be applied
						s.settle(g.id, line.Limit.Global().Count(float64(random.IntN(60))))
					}
				}
			}
			come("a late one", 5)
			list, more := s.inLineOf(s.jobs, line.Limit, 500)
			if n := s.inLine(t); more || len(list) != n {
				t.Fatalf("%d jobs are listed (more: %v), want %d", len(list), more, n)
			}
			for i, w := range list {
				if i > 0 && !line.OverAll && w.Charged < list[i-1].Charged {
					t.Errorf("job %d, before which its tenant will have had %v, follows one with %v",
						i+1, w.Charged, list[i-1].Charged)
				}
				if w.Tenant == "" || w.Place != i+1 || w.Limit != line.Limit.Name() ||
					w.PassedOver || !w.Until.IsZero() {
					t.Errorf("listed: %+v", w)
				}
			}
			var order []int64
			for range list {
				for _, g := range s.step() {
					order = append(order, g.id)
				}
			}
			if ids := idsOf(list); !slices.Equal(order, ids) {
				t.Errorf("granted in the order %v, listed in the order %v", order, ids)
			}
		})
	}
}

// However many wait, few are read: those that go next, and some of each tenant.
func TestAListOfALineIsBounded(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "greedy"}, 600, nil, limit.Global())
	modest := s.wait(scheduler.Tenant{Key: "modest"}, 3, nil, limit.Global().Count(150))
	list, more := s.inLineOf(s.jobs, limit, 500)
	if len(list) != 103 || !more {
		t.Fatalf("%d jobs are listed (more: %v), want 103: a hundred of greedy, and all of modest", len(list), more)
	}
	if ids := idsOf(list); slices.Index(ids, modest[0]) != 1 || slices.Index(ids, modest[1]) < 101 {
		t.Errorf("of modest, job %d and then %d are listed, want the second and one of the last",
			slices.Index(ids, modest[0])+1, slices.Index(ids, modest[1])+1)
	}
	for i, w := range list {
		if want := i + 1; w.Place != want && (i < 101 || w.Place != 0) {
			t.Errorf("job %d in the list has place %d, want 0 behind the last that is read of greedy", want, w.Place)
		}
	}
	if list[101].Place != 0 {
		t.Errorf("job 102 of the list, behind the last that is read of greedy, has place %d, want 0", list[101].Place)
	}
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 7: 7} {
		if some, more := s.inLineOf(s.jobs, limit, n); len(some) != want || !more {
			t.Errorf("of at most %d, %d jobs are listed (more: %v), want %d", n, len(some), more, want)
		}
	}
	for i := range 150 {
		s.wait(scheduler.Tenant{Key: fmt.Sprintf("other %03d", i)}, 5, nil, limit.Global())
	}
	list, more = s.inLineOf(s.jobs, limit, 500)
	of := map[string]int{}
	for _, w := range list {
		of[w.Tenant]++
	}
	if len(list) != 500 || !more || len(of) != 152 || of["greedy"] != 4 || of["modest"] != 1 {
		t.Errorf("%d jobs of %d tenants are listed (more: %v): %d of greedy, %d of modest; want 500 of 152: 4 and 1",
			len(list), len(of), more, of["greedy"], of["modest"])
	}
	if other, more := s.inLineOf(s.jobs, wait, 500); len(other) != 0 || more {
		t.Errorf("%d jobs are listed (more: %v) of a limit without any", len(other), more)
	}
}

// The list says which other limit makes the line pass over a job.
func TestAListOfALineSaysWhoIsPassedOver(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	own := ratelimit.MustDefine(t.Name()+" own",
		ratelimit.TokenBucket{Rate: 1e-3, Period: time.Hour, Capacity: ratelimit.Tokens(6)})
	s := steppedLines(t, scheduler.Line{Limit: limit})
	out := s.wait(scheduler.Tenant{Key: "out"}, 2, nil, limit.Global(), own.For("out").Count(4))
	fine := s.wait(scheduler.Tenant{Key: "fine"}, 2, nil, limit.Global(), own.For("fine").Count(4))
	if err := s.limiter.Autocommit(s.pool).Consume(t.Context(), own.For("out").Count(3)); err != nil {
		t.Fatal(err)
	}
	list, _ := s.inLineOf(s.jobs, limit, 10)
	if want := []int64{fine[0], out[0], fine[1], out[1]}; !slices.Equal(idsOf(list), want) {
		t.Errorf("listed: %v, want %v", idsOf(list), want)
	}
	for _, w := range list {
		switch {
		case w.PassedOver != (w.Tenant == "out"), w.PassedOver && (w.Limit != own.Name() || w.Key != "out"):
			t.Errorf("listed: %+v", w)
		case w.PassedOver && !strings.HasSuffix(w.String(),
			" is passed over because of "+own.Name()+" of out, for tenant out"):
			t.Errorf("said of a job that is passed over: %v", w)
		}
	}
	if got := s.step(); len(got) != 1 || got[0].id != fine[0] {
		t.Errorf("granted: %+v, want the first job of fine", got)
	}
}

// What cannot have its turn now is not listed.
func TestOnlyJobsThatCanHaveTheirTurnsAreListed(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	a := scheduler.Tenant{Key: "a"}
	ids := s.wait(a, 5, nil, limit.Global())
	later := time.Now().Add(time.Hour)
	s.wait(a, 1, &river.InsertOpts{ScheduledAt: later}, limit.Global())
	s.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE id = %d`,
		ids[0]))
	if _, err := s.client.JobCancel(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.JobDelete(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	// A program that does not have the Line lists it, too.
	jobs := scheduler.New(s.limiter, scheduler.Config{}).Jobs(s.client)
	for _, jobs := range []*scheduler.Jobs{s.jobs, jobs} {
		if list, more := s.inLineOf(jobs, limit, 10); !slices.Equal(idsOf(list), ids[3:]) || more {
			t.Errorf("listed: %v (more: %v), want %v", list, more, ids[3:])
		}
	}
}

func TestExplainTellsOfALine(t *testing.T) {
	t.Parallel()
	limit := shared(t, 10, 10)
	f, _, _ := queuing(t, scheduler.Line{Limit: limit})
	later := queueing(2, limit.For("k"))
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	later.InsertOpts = &river.InsertOpts{ScheduledAt: at}
	jobs := f.queue(t, queueing(1, limit.For("k")), later)
	for i, ends := range []string{", for tenant a",
		", for tenant a, not before " + at.Format("2006-01-02 15:04:05 MST")} {
		job := f.job(t, jobs[i].Job.ID)
		w, ok := scheduler.Explain(job)
		if !ok || w.Limit != limit.Name() || w.Key != "k" || w.Tenant != "a" || w.Paused ||
			w.Until.IsZero() == (i == 1) {
			t.Fatalf("%+v, %v", w, ok)
		}
		if want := fmt.Sprintf("job %d (%s) waits for its turn at %s of k%s", job.ID, job.Kind,
			limit.Name(), ends); w.String() != want {
			t.Errorf("%q, want %q", w, want)
		}
	}
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		list, err := f.jobs.Waiting(ctx, tx, limit.For("k"), 10)
		if len(list) != 0 {
			t.Errorf("reserved: %v, want none", list)
		}
		return err
	})
	if _, err := f.client.JobCancel(t.Context(), jobs[0].Job.ID); err != nil {
		t.Fatal(err)
	}
	if w, ok := scheduler.Explain(f.job(t, jobs[0].Job.ID)); ok {
		t.Errorf("a cancelled job: %v", w)
	}
}
