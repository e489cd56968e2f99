package scheduler_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Tenants that wait get the same, by weight, whatever the size of their jobs and however many they
// have.
func TestTenantsThatWaitAreGrantedTheirShares(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("Shards=%d", shards), func(t *testing.T) {
			t.Parallel()
			sharesOf(t, store(t, 300, ratelimit.Shards(shards)))
		})
	}
}

func sharesOf(t *testing.T, limit ratelimit.Limit) {
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "many"}, 300, nil, limit.Global().Count(1))
	s.wait(scheduler.Tenant{Key: "large"}, 30, nil, limit.Global().Count(7))
	s.wait(scheduler.Tenant{Key: "heavy", Weight: 3}, 300, nil, limit.Global().Count(2))
	largest, weights := map[string]float64{"many": 1, "large": 7, "heavy": 2},
		map[string]float64{"many": 1, "large": 1, "heavy": 3}
	got, total := had{}, 0.0
	for total < 100 {
		all := s.step()
		if len(all) == 0 {
			t.Fatalf("nothing is granted after %v", got)
		}
		got.add(all)
		total = 0
		for a := range largest {
			total += got[a]
			for b := range largest {
				apart := math.Abs(got[a]/weights[a] - got[b]/weights[b])
				if most := largest[a]/weights[a] + largest[b]/weights[b]; apart > most {
					t.Fatalf("%v: by weight, %s and %s are %v apart, want at most %v", got, a, b, apart, most)
				}
			}
		}
	}
	s.want(t, limit.Global(), 300-total, -1)
}

// A grant takes from all shards alike, so that what it grants is not far ahead in the line of one
// of them.
func TestALineTakesFromAllShards(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine(t.Name(), ratelimit.TokenBucket{Rate: 100, Period: time.Second,
		Capacity: ratelimit.Tokens(400), MaxReserved: ratelimit.Tokens(100)}, ratelimit.Shards(4))
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 40, nil, limit.Global().Count(1))
	if n := len(s.step()); n != 40 {
		t.Fatalf("%d were granted", n)
	}
	var least float64
	err := s.pool.QueryRow(t.Context(), `SELECT min(value) FROM weir_balance WHERE name = $1 AND value > '-infinity'`,
		limit.Name()).Scan(&least)
	if err != nil || least < 100-20 {
		t.Errorf("a shard of 100 has %v left of 40 tokens that were taken (%v): more than half "+
			"of them are from this one",
			least, err)
	}
}

// If others take tokens between a grant's look and its takes, the takes before the one that is
// denied are given back, and fewer jobs are granted.
func TestAGrantThatIsDeniedInPartTakesNothing(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	const shards, full, cost = 4, 80, 3
	limit := ratelimit.MustDefine(t.Name(), ratelimit.TokenBucket{Rate: 1e-3, Period: time.Hour,
		Capacity: ratelimit.Tokens(full), MaxReserved: ratelimit.Tokens(0.4)}, ratelimit.Shards(shards))
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 1000, nil, limit.Global().Count(cost))
	others := s.limiter.Autocommit(s.pool)
	if err := others.Consume(t.Context(), limit.Global()); err != nil {
		t.Fatal(err)
	}
	for round := range 80 {
		s.exec(t, fmt.Sprintf(`UPDATE weir_balance SET value = %d WHERE capacity > 0`, full/shards))
		var stop atomic.Bool
		var taken atomic.Int64
		var takers sync.WaitGroup
		for range 3 {
			takers.Go(func() {
				for !stop.Load() {
					if err := others.Consume(t.Context(), limit.Global()); err == nil {
						taken.Add(1)
					} else if !errors.Is(err, ratelimit.ErrDenied) {
						t.Error(err)
					}
				}
			})
		}
		granted := 0
		for range 5 {
			granted += len(s.step())
		}
		stop.Store(true)
		takers.Wait()
		gone := int(taken.Load()) + granted*cost
		var left float64
		if err := s.pool.QueryRow(t.Context(),
			`SELECT sum(value) FROM weir_balance WHERE capacity > 0`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if math.Abs(full-float64(gone)-left) > 0.01 {
			t.Fatalf("round %d: %d of %d tokens are gone, %d jobs granted, and %v are left", round,
				gone, full, granted, left)
		}
	}
}

// A tenant that comes late has its turn after at most one job of each other, however many wait.
func TestALateTenantGoesNext(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	for _, greedy := range []string{"x", "y", "z"} {
		s.wait(scheduler.Tenant{Key: greedy}, 100, nil, limit.For("k").Count(3))
	}
	for range 10 {
		s.step()
	}
	late := s.wait(scheduler.Tenant{Key: "a late one"}, 5, nil, limit.For("k").Count(2))
	others := 0
	for len(late) > 0 {
		all := s.step()
		if len(all) == 0 {
			t.Fatal("nothing is granted")
		}
		for _, g := range all {
			if i := slices.Index(late, g.id); i > 0 {
				t.Fatalf("job %d is granted before job %d of the same tenant", g.id, late[0])
			} else if i == 0 {
				late = late[1:]
			} else {
				others++
			}
		}
		if done := 5 - len(late); others > 3*(done+2) {
			t.Fatalf("%d jobs of the three others, and %d of the late one", others, done)
		}
	}
}

// A tenant's jobs have their turns by priority, scheduled_at and id, and none before its
// ScheduledAt.
func TestJobsOfATenantAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	a, past := scheduler.Tenant{Key: "a"}, time.Now().Add(-time.Minute)
	one := limit.Global()
	s.wait(a, 2, &river.InsertOpts{Priority: 3}, one)                                     // 1, 2
	s.wait(a, 2, &river.InsertOpts{Priority: 1}, one)                                     // 3, 4
	s.wait(a, 1, &river.InsertOpts{Priority: 1, ScheduledAt: past}, one)                  // 5
	s.wait(a, 1, &river.InsertOpts{Priority: 1, ScheduledAt: time.Now().Add(never)}, one) // 6
	s.wait(a, 1, &river.InsertOpts{Priority: 4, ScheduledAt: past.Add(-time.Second)}, one)
	s.wait(a, 1, &river.InsertOpts{Priority: 2}, one) // 8
	var order []int
	for range 10 {
		order = append(order, numbers(s.step())...)
	}
	if want := []int{5, 3, 4, 8, 1, 2, 7}; !slices.Equal(order, want) {
		t.Errorf("granted in the order %v, want %v", order, want)
	}
}

// A job of low priority is passed over only by those that came at most Patience later.
func TestPatienceBoundsPriority(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit, Patience: time.Minute})
	a, now := scheduler.Tenant{Key: "a"}, time.Now()
	at := func(priority int, d time.Duration) *river.InsertOpts {
		return &river.InsertOpts{Priority: priority, ScheduledAt: now.Add(d)}
	}
	s.wait(a, 1, at(1, -10*time.Second), limit.Global())  // 1
	s.wait(a, 1, at(2, -60*time.Second), limit.Global())  // 2: less than a minute before
	s.wait(a, 1, at(2, -80*time.Second), limit.Global())  // 3: more
	s.wait(a, 1, at(4, -230*time.Second), limit.Global()) // 4: more than three minutes before
	var order []int
	for range 4 {
		order = append(order, numbers(s.step())...)
	}
	if want := []int{4, 3, 1, 2}; !slices.Equal(order, want) {
		t.Errorf("granted in the order %v, want %v", order, want)
	}
}

// With OverAll, higher priorities go first whoever's they are, until others have waited for long.
func TestPrioritiesCountOverAll(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit, OverAll: true, Patience: time.Hour})
	old := time.Now().Add(-3*time.Hour - time.Minute)
	s.wait(scheduler.Tenant{Key: "a"}, 3, &river.InsertOpts{Priority: 2}, limit.Global())
	s.wait(scheduler.Tenant{Key: "b"}, 3, &river.InsertOpts{Priority: 1}, limit.Global())
	s.wait(scheduler.Tenant{Key: "c"}, 3, &river.InsertOpts{Priority: 4, ScheduledAt: old}, limit.Global())
	var order []string
	for range 9 {
		for _, g := range s.step() {
			order = append(order, g.tenant)
		}
	}
	if len(order) != 9 {
		t.Fatalf("granted: %v, want nine", order)
	}
	if i := slices.Index(order, "a"); i != 6 {
		t.Errorf("granted in the order %v, want those of a last: b has priority 1, and c has waited for it", order)
	}
	if b, c := slices.Index(order, "b"), slices.Index(order, "c"); max(b, c) > 1 {
		t.Errorf("granted in the order %v, want b and c to share", order)
	}
}

// A tenant whose own limit is out is passed over, and when it is back has no claim to what it
// missed.
func TestATenantWhoseOwnLimitIsOutIsPassedOver(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	own := ratelimit.MustDefine(t.Name()+" own",
		ratelimit.TokenBucket{Rate: 1e-3, Period: time.Hour, Capacity: ratelimit.Tokens(6)})
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "out"}, 20, nil, limit.Global(), own.For("out").Count(2))
	s.wait(scheduler.Tenant{Key: "fine"}, 100, nil, limit.Global(),
		own.For("fine").Count(2).Rule(ratelimit.TokenBucket{Rate: 1e6, Period: time.Second}))
	got := had{}
	for range 20 {
		got.add(s.step())
	}
	if got["out"] != 3 || got["fine"] < 20 {
		t.Fatalf("granted: %v, want 3 of the tenant whose own limit is out, and the rest of the other", got)
	}
	s.want(t, own.For("out"), 0, -1)
	s.want(t, limit.Global(), 1000-got["out"]-got["fine"], -1)
	if err := s.limiter.Autocommit(s.pool).ResetRateLimit(t.Context(), own.For("out")); err != nil {
		t.Fatal(err)
	}
	before := got["fine"]
	for got["out"] < 6 {
		all := s.step()
		if got.add(all); len(all) == 0 {
			t.Fatalf("nothing is granted after %v", got)
		}
	}
	if fine := got["fine"] - before; fine < 1 || fine > 5 {
		t.Errorf("%v jobs of the other beside 3 of the one that is back, want about as many", fine)
	}
}

// Jobs of a tenant that can never be taken together hold up no other tenant: together they would
// leave less than their Leave, or ask for more than the capacity of their rule, although there is
// more according to the rule of another job.
func TestJobsThatCannotBeTakenTogetherHoldUpNoLine(t *testing.T) {
	t.Parallel()
	rule := func(capacity float64) ratelimit.TokenBucket {
		return ratelimit.TokenBucket{Rate: 1e-3, Period: time.Hour, Capacity: &capacity}
	}
	for name, want := range map[string]float64{"Leave": 5, "Rules": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := ratelimit.MustDefine(t.Name(), ratelimit.TokenBucket{Rate: 1000, Period: time.Second,
				MaxReserved: ratelimit.Tokens(100)}) // enough for all of them at once
			own := ratelimit.MustDefine(t.Name()+" own", rule(10))
			s := steppedLines(t, scheduler.Line{Limit: limit})
			asked := own.For("k")
			if name == "Leave" {
				asked = asked.Leave(5)
			}
			empty := own.For("empty")
			if _, err := s.limiter.Autocommit(s.pool).RateLimit(t.Context(), empty.Count(10)); err != nil {
				t.Fatal(err)
			}
			s.wait(scheduler.Tenant{Key: "passed over"}, 1, nil, limit.Global(), empty, own.For("k").Rule(rule(1000)))
			s.wait(scheduler.Tenant{Key: "polite"}, 20, nil, limit.Global(), asked)
			s.wait(scheduler.Tenant{Key: "z"}, 20, nil, limit.Global())
			got := had{}
			for range 5 {
				got.add(s.step())
			}
			if got["polite"] != want || got["z"] != 20 {
				t.Errorf("granted: %v, want %v jobs of the one and 20 of the other", got, want)
			}
		})
	}
}

// Jobs that are cancelled or deleted leave the line; one that runs, or waits for a retry, keeps its
// place.
func TestWhoLeavesTheLineAndWhoKeepsTheirPlace(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	ids := s.wait(scheduler.Tenant{Key: "a"}, 6, nil, limit.Global())
	s.inRC(t, func(tx pgx.Tx) error {
		_, err := s.jobs.CancelTx(t.Context(), tx, ids[0])
		return err
	})
	if _, err := s.client.JobDelete(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.JobCancel(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	s.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE id = %d`,
		ids[3]))
	var order []int
	for range 4 {
		order = append(order, numbers(s.step())...)
	}
	if want := []int{5, 6}; !slices.Equal(order, want) {
		t.Errorf("granted: %v, want %v", order, want)
	}
	if n := s.inLine(t); n != 1 {
		t.Errorf("%d jobs in line, want the one that runs", n)
	}
	s.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'scheduled', attempt = 0, scheduled_at = '2200-01-01' WHERE id = %d`, ids[3]))
	if got := numbers(s.step()); !slices.Equal(got, []int{4}) {
		t.Errorf("granted: %v, want 4", got)
	}
	s.want(t, limit.Global(), 97, -1)
}

// Granting stops while granted work waits for a worker, and the tenants' shares with it.
func TestNothingIsGrantedWhileGrantedWorkWaitsForAWorker(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "a"}, 50, nil, limit.Global())
	slow := s.wait(scheduler.Tenant{Key: "b"}, 50, &river.InsertOpts{Queue: "slow"}, limit.Global())
	for range 10 {
		s.round()
	}
	all := s.granted()
	if len(all) == 0 || len(all) > 4 {
		t.Fatalf("%d jobs are granted, and none is fetched: want two for each queue", len(all))
	}
	for _, g := range all {
		if g.tenant == "a" {
			s.end(g.id)
		}
	}
	s.round()
	more := 0
	for _, g := range s.granted() {
		if !slices.Contains(slow, g.id) {
			more++
		}
	}
	if more == 0 {
		t.Error("nothing is granted when one queue's workers are free, as the other's are not")
	}
}
