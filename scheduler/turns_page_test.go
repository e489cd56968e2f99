package scheduler_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// There are more lines than a round looks at, and jobs wait in all of them for good.
func TestEveryLineHasItsTurn(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	const n = 450
	limit := ratelimit.MustDefine("orgs",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(1)})
	s := steppedLines(t, scheduler.Line{Limit: limit})
	var params []scheduler.QueueManyParams
	for i := range 3 * n { // one may be granted for later
		params = append(params, scheduler.QueueManyParams{Args: sendArgs{i}, Tenant: scheduler.Tenant{Key: "a"},
			Requests: []ratelimit.Request{limit.For(fmt.Sprintf("org-%03d", i%n))}})
	}
	s.queue(t, params...)
	for rounds, failed := 0, 0; rounds < 4; rounds++ {
		// as on a table that is in use, where Postgres knows how many rows there are
		if _, err := s.pool.Exec(t.Context(), `ANALYZE weir_turn, weir_line`); err != nil {
			t.Fatal(err)
		}
		if s.round(); s.failed > failed { // a line comes again once all others have had their turns
			rounds, failed = -1, s.failed
		}
	}
	had := map[int]bool{}
	for _, g := range s.granted() {
		had[g.n%n] = true
	}
	if len(had) != n {
		t.Errorf("jobs of %d keys had their turns, want %d", len(had), n)
	}
}

// A round that runs out of its time at one line has the next one begin with those behind it.
func TestALineThatIsHeldUpHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	limit := store(t, 10)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "t"}, 1, nil, limit.For("a")) // the first line of a round
	other := s.wait(scheduler.Tenant{Key: "t"}, 1, nil, limit.For("b"))
	if err := s.limiter.Autocommit(s.pool).Consume(t.Context(), limit.For("a")); err != nil {
		t.Fatal(err)
	}
	tx := s.hold(t, limit.For("a"))
	waits := func() bool { return rig.IsWaitedFor(t, s.pool, tx) }
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = scheduler.GrantTurns(ctx, s.cfg)
		}()
		eventually(t, "the round waits for the balance of the first line, or ends", func() bool {
			select {
			case <-ended:
				return true
			default:
				return waits()
			}
		})
		cancel() // its time is over
		<-ended
		eventually(t, "its transaction has ended", func() bool { return !waits() })
	}
	if all := s.granted(); len(all) != 1 || all[0].id != other[0] {
		t.Errorf("granted: %+v, want job %d", all, other[0])
	}
}

// Somebody who holds the balance of a tenant's own limit holds up none of the line's other tenants.
func TestAHeldBalanceOfATenantHoldsUpNoOtherTenant(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	own := ratelimit.MustDefine("own", ratelimit.TokenBucket{Rate: 1000, Period: never})
	if err := s.limiter.Autocommit(s.pool).Consume(t.Context(), own.For("c")); err != nil {
		t.Fatal(err)
	}
	tx := s.hold(t, own.For("c"))
	want := 0
	for _, tenant := range []string{"a", "b", "c", "d"} {
		jobs := s.wait(scheduler.Tenant{Key: tenant}, 10, nil, limit.Global(), own.For(tenant))
		if tenant != "c" {
			want += len(jobs)
		}
	}
	granted := 0
	grant := func() {
		t.Helper()
		if _, err := scheduler.GrantTurns(t.Context(), s.cfg); err != nil && !stalled(err) {
			t.Fatal(err)
		}
		for _, g := range s.granted() {
			s.end(g.id)
			granted++
		}
	}
	for round := 0; granted < want && round < 40; round++ {
		grant()
	}
	if granted != want {
		t.Fatalf("%d are granted, want the %d of the tenants whose balances nobody holds", granted, want)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "those of the other have their turns", func() bool {
		grant()
		return granted == want+10
	})
}

// Jobs that cannot have their turns, as many as a grant reads, hold up none of their tenant's.
func TestUnfitJobsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	limit := store(t, 1000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	bad := s.wait(scheduler.Tenant{Key: "a"}, 100, nil, limit.Global())
	good := s.wait(scheduler.Tenant{Key: "a"}, 1, nil, limit.Global())
	if _, err := s.pool.Exec(t.Context(),
		`UPDATE river_job SET metadata = '{}' WHERE id = ANY ($1)`, bad); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 5 && len(s.granted()) == 0; n++ { // two, unless there are ten seconds between them
		s.round()
	}
	if all := s.granted(); len(all) != 1 || all[0].id != good[0] {
		t.Errorf("granted: %+v, want job %d", all, good[0])
	}
}

// What a tenant has not used is no claim for later if its last job in line is cancelled, either.
func TestARefundIsNotKeptForATenantWhoseJobsAreCancelled(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	for name, cancel := range map[string]func(s *stepped, id int64){
		"CancelTx": func(s *stepped, id int64) {
			s.inRC(s.t, func(tx pgx.Tx) error {
				_, err := s.jobs.CancelTx(s.t.Context(), tx, id)
				return err
			})
		},
		"RiverUI": func(s *stepped, id int64) {
			if _, err := s.client.JobCancel(s.t.Context(), id); err != nil {
				s.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := store(t, 10_000)
			s := steppedLines(t, scheduler.Line{Limit: limit})
			s.wait(scheduler.Tenant{Key: "busy"}, 2, nil, limit.Global().Count(6000)) // one waits for long
			a := s.wait(scheduler.Tenant{Key: "a"}, 2, nil, limit.Global().Count(3500))
			s.round()
			s.settle(a[0], limit.Global().Count(1)) // a refund, while its second job waits
			s.round()
			credit := func() (n float64) {
				t.Helper()
				if err := s.pool.QueryRow(t.Context(),
					`SELECT coalesce(sum(credit), 0) FROM weir_line_tenant WHERE tenant = 'a'`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			if credit() == 0 {
				t.Fatal("there is no credit to lose")
			}
			cancel(s, a[1])
			eventually(t, "its credit is gone", func() bool {
				s.round()
				return credit() == 0
			})
		})
	}
}
