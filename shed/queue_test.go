package shed

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Waiting requests run by class, and within a class in the order of arrival. The newest of the
// lowest class makes room.
func TestQueueIsInOrderOfClassAndArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		// Ramps without a slope: nothing is left to chance.
		s := mustNew(t, Config{Limit: 1, Queue: 4, MaxWait: time.Hour, Normal: Ramp{1, 1}, Background: Ramp{1, 1}})
		free := hold(s, 1)
		codes := map[string]int{}
		send := func(name string, c Class) {
			go func() {
				w := ask(context.Background(), s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, name)
				})), c)
				mu.Lock()
				defer mu.Unlock()
				codes[name] = w.Code
			}()
			synctest.Wait()
		}
		send("b1", Background)
		send("b2", Background)
		send("n1", Normal)
		send("c1", Critical)
		check(t, s, Stats{InUse: 1, Queued: 4})
		send("b3", Background) // there is no lower one than it
		send("n2", Normal)     // in place of b2
		send("c2", Critical)   // in place of b1
		send("c3", Critical)   // in place of n2
		send("n3", Normal)     // there is no lower one
		check(t, s, Stats{InUse: 1, Queued: 4})
		free()
		if want := []string{"c1", "c2", "c3", "n1"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
		for _, name := range []string{"b1", "b2", "b3", "n2", "n3"} {
			if codes[name] != 503 {
				t.Errorf("%s: %d", name, codes[name])
			}
		}
		check(t, s, Stats{})
	})
}

// A permit that becomes free goes to no waiting request that is above its class's share.
func TestQueueKeepsToTheShareOfTheClass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		s := mustNew(t, Config{Limit: 4, MaxWait: time.Minute, Normal: Ramp{1, 1},
			Background: Ramp{0.5, 0.5}, Observer: l.observe})
		free1, free2 := hold(s, 2), hold(s, 2)
		go ask(context.Background(), s.Handler(nothing), Background)
		synctest.Wait()
		end := hold(s, 1) // waits as well
		free1()           // the critical one has the first permit, and the second stays free
		check(t, s, Stats{InUse: 3, Queued: 1})
		free2()
		if l.count(Background, Admitted) != 1 {
			t.Error("the background request does not run at a use of a quarter")
		}
		end()
		check(t, s, Stats{})
	})
}

func TestWaitEndsAfterMaxWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		s := mustNew(t, Config{Limit: 1, MaxWait: 30 * time.Millisecond, Observer: l.observe})
		defer hold(s, 1)()
		began := time.Now()
		if w := ask(t.Context(), s.Handler(nothing), Critical); w.Code != 503 {
			t.Errorf("%d", w.Code)
		}
		if d := time.Since(began); d != 30*time.Millisecond {
			t.Errorf("after %v", d)
		}
		check(t, s, Stats{InUse: 1})
		if e := l.all()[1]; e.Outcome != Refused || e.Waited != 30*time.Millisecond || e.Stats != (Stats{InUse: 1}) {
			t.Errorf("%+v", e)
		}
	})
}

func TestLeaverFreesItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		s := mustNew(t, Config{Limit: 1, Queue: 1, MaxWait: time.Hour, Observer: l.observe})
		free := hold(s, 1)
		ctx, cancel := context.WithCancel(t.Context())
		h := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("the handler of a leaver runs")
		}))
		go ask(ctx, h, Critical)
		synctest.Wait()
		check(t, s, Stats{InUse: 1, Queued: 1})
		cancel()
		synctest.Wait()
		check(t, s, Stats{InUse: 1})
		if l.count(Critical, Left) != 1 {
			t.Errorf("%+v", l.all())
		}
		free()
		check(t, s, Stats{})
	})
}

// A request that is given a permit at the moment in which it leaves gives it back, to the next one.
func TestLeaverThatIsAdmittedGivesItsPermitBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		s := mustNew(t, Config{Limit: 1, Queue: 2, MaxWait: time.Hour, Observer: l.observe})
		tk := s.claim(Critical)
		s.arrive(tk)
		ctx, cancel := context.WithCancel(t.Context())
		go ask(ctx, s.Handler(nothing), Critical)
		synctest.Wait()
		go ask(t.Context(), s.Handler(nothing), Critical)
		synctest.Wait()
		check(t, s, Stats{InUse: 1, Queued: 2})
		s.mu.Lock() // the first cannot look at its ticket before both have happened
		cancel()
		tk.state = gone
		s.inUse--
		s.passOn()
		s.mu.Unlock()
		synctest.Wait()
		check(t, s, Stats{})
		if l.count(Critical, Left) != 1 || l.count(Critical, Admitted) != 1 {
			t.Errorf("%+v", l.all())
		}
	})
}

// A client that really closes its connection is noticed while its request waits.
func TestClosedConnectionFreesItsPlace(t *testing.T) {
	t.Parallel()
	left := make(chan Event, 8)
	s := mustNew(t, Config{Limit: 1, MaxWait: time.Hour, Observer: func(e Event) { left <- e }})
	working, end := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(working)
		<-end
	})))
	defer server.Close()
	defer close(end)
	go func() {
		if resp, err := http.Get(server.URL + "/critical"); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-working
	<-left // admitted
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/critical", nil)
	go func() {
		for s.Stats().Queued == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if resp, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
		if err == nil {
			_ = resp.Body.Close()
		}
		t.Fatalf("%v", err)
	}
	if e := <-left; e.Outcome != Left {
		t.Errorf("%+v", e)
	}
	check(t, s, Stats{InUse: 1})
}
