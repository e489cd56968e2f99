package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// However many people look at the same, it is read once a second.
func TestViewersShareWhatIsRead(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts transactions, and the first statement is refused once there")
	pool := pgtest.Pool(t)
	take(t, pool, nil, search.For("ann"))
	db := &begins{Pool: pool}
	d := newDashboard(t, db, Config{})
	now := time.Now()
	var mu sync.Mutex
	d.shared.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	look := func() {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if r := get(t, d, http.MethodGet, "/api/balance?limit=search", "Weir-Key",
					"ann"); r.Code != http.StatusOK {
					t.Error(r.Code)
				}
			})
		}
		wg.Wait()
	}
	look()
	look()
	if n := db.n.Load(); n != 1 {
		t.Errorf("%d transactions for a hundred viewers", n)
	}
	mu.Lock()
	now = now.Add(time.Second)
	mu.Unlock()
	look()
	if n := db.n.Load(); n != 2 {
		t.Errorf("%d transactions, want another after a second", n)
	}
	get(t, d, http.MethodGet, "/api/balance?limit=search", "Weir-Key", "ben")
	if n := db.n.Load(); n != 3 {
		t.Errorf("%d transactions, want another for another key", n)
	}
}

func TestAViewerWhoLeavesTakesNothingFromTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		ctx, leave := context.WithCancel(t.Context())
		reading := func(ctx context.Context) ([]byte, error) {
			select {
			case <-time.After(time.Second):
				return []byte("read"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		go func() { _, _ = s.get(ctx, "what", reading) }()
		synctest.Wait()
		leave()
		if body, err := s.get(t.Context(), "what", reading); string(body) != "read" || err != nil {
			t.Errorf("%s, %v", body, err)
		}
		left, leave := context.WithCancel(t.Context())
		leave()
		time.Sleep(time.Hour)
		go func() { _, _ = s.get(t.Context(), "what", reading) }()
		synctest.Wait()
		if _, err := s.get(left, "what", reading); !errors.Is(err, context.Canceled) {
			t.Errorf("who has left waits: %v", err)
		}
		time.Sleep(time.Hour)
	})
}

// What takes long is read less often: a tenth of the time at the most is spent on it.
func TestSlowReadingsAreMadeLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		times := 0
		slow := func(context.Context) ([]byte, error) {
			times++
			time.Sleep(2 * time.Second)
			return nil, nil
		}
		for range 100 {
			if _, err := s.get(t.Context(), "slow", slow); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if times < 3 || times > 6 {
			t.Errorf("read %d times in a hundred seconds", times)
		}
	})
}

// A quick reading that has waited for slow ones is as fresh as any, as it has cost nothing.
func TestAQuickReadingBehindSlowOnesIsMadeAsOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var wg sync.WaitGroup
		for i := range atOnce {
			wg.Go(func() {
				_, err := s.get(t.Context(), fmt.Sprint("slow", i), func(context.Context) ([]byte, error) {
					time.Sleep(3 * time.Second)
					return nil, nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		times := 0
		for range 2 {
			_, err := s.get(t.Context(), "quick", func(context.Context) ([]byte, error) {
				times++
				return nil, nil
			})
			if err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		if wg.Wait(); times != 2 {
			t.Errorf("read %d times", times)
		}
	})
}

// A reading that fails costs the database as much as one that does not.
func TestSlowReadingsThatFailAreMadeLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var spent time.Duration
		began := time.Now()
		for range 200 {
			_, err := s.get(t.Context(), "slow", func(ctx context.Context) ([]byte, error) {
				start := time.Now()
				<-ctx.Done()
				spent += time.Since(start)
				return nil, ctx.Err()
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if all := time.Since(began); spent < 2*patience || spent-patience > all/10 {
			t.Errorf("of %v it has read for %v", all, spent)
		}
	})
}

// A reading that has failed at once, or has only waited, has cost nothing, and is made again soon.
func TestAnErrorThatCostNothingIsForgottenSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		bad := errors.New("bad")
		if _, err := s.get(t.Context(), "failed", func(context.Context) ([]byte, error) {
			return nil, bad
		}); !errors.Is(err, bad) {
			t.Error(err)
		}
		for range atOnce {
			s.slots <- struct{}{}
		}
		if _, err := s.get(t.Context(), "waited", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for range atOnce {
			<-s.slots
		}
		time.Sleep(fresh)
		for _, what := range []string{"failed", "waited"} {
			body, err := s.get(t.Context(), what, func(context.Context) ([]byte, error) {
				return []byte("well"), nil
			})
			if err != nil || string(body) != "well" {
				t.Errorf("%s: %s, %v", what, body, err)
			}
		}
	})
}

func TestAReadingIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var wg sync.WaitGroup
		var under atomic.Int64
		var mu sync.Mutex
		most := int64(0)
		began := time.Now()
		for i := range 6 {
			wg.Go(func() {
				_, err := s.get(t.Context(), fmt.Sprint(i), func(ctx context.Context) ([]byte, error) {
					n := under.Add(1)
					defer under.Add(-1)
					mu.Lock()
					most = max(most, n)
					mu.Unlock()
					<-ctx.Done()
					return nil, ctx.Err()
				})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most != atOnce || time.Since(began) > patience {
			t.Errorf("%d at once, %v", most, time.Since(began))
		}
	})
}

func TestAReadingThatPanicsHangsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		waiting := make(chan error)
		go func() {
			defer func() { _ = recover() }()
			_, _ = s.get(t.Context(), "what", func(context.Context) ([]byte, error) {
				go func() {
					_, err := s.get(t.Context(), "what", nil)
					waiting <- err
				}()
				time.Sleep(time.Second)
				panic("on purpose")
			})
		}()
		if err := <-waiting; err == nil {
			t.Error("no error")
		}
	})
}

func TestAnswersAreKeptInABoundedNumber(t *testing.T) {
	t.Parallel()
	s := newShared()
	for i := range 5000 {
		if _, err := s.get(t.Context(), fmt.Sprint(i), func(context.Context) ([]byte, error) {
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(s.kept) > mostKept {
			t.Fatalf("%d answers are kept", len(s.kept))
		}
	}
}
