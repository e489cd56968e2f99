package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// watcher is an observer that remembers.
type watcher struct {
	mu         sync.Mutex
	decided    []ratelimit.DecidedEvent
	transacted []ratelimit.TransactedEvent
}

func (w *watcher) Decided(_ context.Context, e ratelimit.DecidedEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decided = append(w.decided, e)
}

func (w *watcher) Transacted(_ context.Context, e ratelimit.TransactedEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.transacted = append(w.transacted, e)
}

// last is the only event since the last.
func (w *watcher) last(t *testing.T) ratelimit.DecidedEvent {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.decided) != 1 {
		t.Fatalf("%d events: %+v", len(w.decided), w.decided)
	}
	e := w.decided[0]
	w.decided = nil
	return e
}

// Every decision is told once, with what it cost, by whatever way it was asked for; so are errors.
func TestTheObserverIsToldOfEveryDecisionAndItsCost(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	bucket := ratelimit.MustDefine("observed", ratelimit.TokenBucket{Rate: 3, Period: rig.Never})
	other := ratelimit.MustDefine("observedToo", ratelimit.TokenBucket{Rate: 9, Period: rig.Never})
	trial := ratelimit.MustDefine("observed", ratelimit.TokenBucket{Rate: 1, Period: rig.Never}, ratelimit.Shadow())
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			var seen watcher
			pool := pgtest.Pool(t)
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Observer: &seen}), pool)
			check := func(what string, trips int, ok bool, requests ...ratelimit.Request) {
				t.Helper()
				before := time.Now()
				res, err := v.RateLimit(t.Context(), requests...)
				e := seen.last(t)
				if (e.Err == nil) != (err == nil) || e.Result.OK != res.OK || res.OK != ok ||
					e.Trips != trips || e.Together != 1 ||
					e.Began.Before(before) || e.Took <= 0 || e.Took > time.Since(before) ||
					len(e.Requests) != len(requests) ||
					e.Requests[0].Limit() != requests[0].Limit() {
					t.Errorf("%s: %+v, want %d trips of %+v, %v", what, e, trips, res, err)
				}
			}
			trips := map[string]int{"granted": 1, "both": 1, "denied": 2, "again": 1, "shadow": 2}
			switch w.Name {
			case "Coalesced": // several are decided in a second transaction
				trips = map[string]int{"granted": 1, "both": 2, "denied": 2, "again": 1, "shadow": 2}
			}
			check("granted", trips["granted"], true, bucket.For("k").Count(2))
			check("both", trips["both"], true, bucket.For("k"), other.For("k"))
			check("denied", trips["denied"], false, bucket.For("k"))
			check("denied as expected", trips["again"], false, bucket.For("k"))
			check("with a shadow", trips["shadow"], true, bucket.For("shadow"), trial.For("shadow"))
			check("invalid", 0, false, bucket.For("k").Count(-1))
			if w.Name == "ReadCommitted" || w.Name == "Serializable" {
				seen.mu.Lock()
				if n := len(seen.transacted); n != 6 || seen.transacted[0].Attempts != 1 ||
					seen.transacted[0].Took <= 0 {
					t.Errorf("%d transactions: %+v", n, seen.transacted)
				}
				seen.mu.Unlock()
			} else if w.Name == "Autocommit" && len(seen.transacted) > 0 {
				t.Errorf("calls without a transaction: %+v", seen.transacted)
			}
		})
	}
}

// Calls that are decided together say how many they were, and share their trips.
func TestTheObserverIsToldWhoWasDecidedTogether(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	var seen watcher
	pool := pgtest.Pool(t)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Observer: &seen}), pool)
	l := ratelimit.MustDefine("together", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	var wg sync.WaitGroup
	began := time.Now()
	for range 200 {
		wg.Go(func() { _, _ = c.RateLimit(t.Context(), l.For("k")) })
	}
	wg.Wait()
	// After half a second a batch is decided beside one that takes so long, and may meet its lock.
	slow := time.Since(began) > 500*time.Millisecond
	most, calls := 0, 0.0
	for _, e := range seen.decided {
		if e.Err != nil || !e.Result.OK || e.Trips < 1 || e.Trips > 1 && !slow || e.Together < 1 {
			t.Errorf("%+v", e)
		}
		most = max(most, e.Together)
		calls += 1 / float64(e.Together)
	}
	if len(seen.decided) != 200 || most < 2 || calls > 199 {
		t.Errorf("%d events, at the most %d together, in %v transactions", len(seen.decided), most, calls)
	}
}

// A conflict, the queue and the error of a transaction are told.
func TestTheObserverIsToldWhatATransactionCost(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which a cluster takes more")
	var seen watcher
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{Observer: &seen})
	bucket := ratelimit.MustDefine("conflict", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	runs, stop := 0, errors.New("stop")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		if runs == 1 { // a snapshot, and then somebody else writes the row
			if _, err := tx.Exec(ctx, `SELECT count(*) FROM weir_balance`); err != nil {
				return err
			}
			if _, err := l.Autocommit(pool).RateLimit(context.WithoutCancel(t.Context()), bucket.For("k")); err != nil {
				return err
			}
		}
		if _, err := l.RateLimit(ctx, tx, bucket.For("k")); err != nil {
			return err
		}
		return stop
	})
	if !errors.Is(err, stop) || runs != 2 {
		t.Fatal(err, runs)
	}
	e := seen.transacted
	if len(e) != 1 || e[0].Attempts != 2 || !errors.Is(e[0].Err, stop) || e[0].Queued <= 0 || e[0].Queued > e[0].Took {
		t.Errorf("%+v", e)
	}
	if len(seen.decided) != 3 || seen.decided[1].Err == nil {
		t.Errorf("%+v", seen.decided)
	}
}

// What a lease hands out is told as it is handed out; what it takes ahead is not.
func TestTheObserverIsToldOfTakesOfALease(t *testing.T) {
	t.Parallel()
	var seen watcher
	pool := pgtest.Pool(t)
	// By a clock that stands still a second fetch gets a whole block. So the transaction takes from the
	// hand, and neither a fetch nor what is given back makes it run again.
	l := rig.Limiter(t, ratelimit.Config{Observer: &seen, Clock: rig.Clock().Now})
	lease := lease(t, l, pool, ratelimit.MustDefine("leased",
		ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}).For("k"), ratelimit.LeaseConfig{})
	for range 20 {
		if res, err := lease.Take(t.Context(), 1); err != nil || !res.OK {
			t.Fatal(res, err)
		}
	}
	if err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, tx := range []pgx.Tx{nil, tx} { // what fails is told of, too
			if _, err := lease.TakeInTx(ctx, tx, -1); !errors.Is(err, ratelimit.ErrInvalid) ||
				!errors.Is(seen.decided[len(seen.decided)-1].Err, ratelimit.ErrInvalid) {
				t.Error(err, "was told otherwise")
			}
		}
		_, err := lease.TakeInTx(ctx, tx, 1)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := lease.Close(t.Context()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if len(seen.decided) != 23 || seen.decided[3].Requests[0].N() != 1 ||
		seen.decided[3].Requests[0].Key() != "k" || len(seen.transacted) != 1 {
		t.Errorf("%d events: %+v", len(seen.decided), seen.decided)
	}
}
