package shed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// log is what an Observer was told.
type log struct {
	mu     sync.Mutex
	events []Event
}

func (l *log) observe(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *log) count(c Class, o Outcome) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Class == c && e.Outcome == o {
			n++
		}
	}
	return n
}

func (l *log) all() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// byPath is the class of a request of these tests.
func byPath(r *http.Request) Class {
	return map[string]Class{"/critical": Critical, "/background": Background}[r.URL.Path]
}

func mustNew(t testing.TB, cfg Config) *Shedder {
	t.Helper()
	if cfg.Class == nil {
		cfg.Class = byPath
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ask sends a request of the class through the handler and returns the answer.
func ask(ctx context.Context, h http.Handler, c Class) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/"+c.String(), nil))
	return w
}

// hold occupies n permits with critical requests until the returned function is called.
func hold(s *Shedder, n int) (free func()) {
	end := make(chan struct{})
	for range n {
		go ask(context.Background(), s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end })), Critical)
	}
	synctest.Wait()
	return func() { close(end); synctest.Wait() }
}

func check(t *testing.T, s *Shedder, want Stats) {
	t.Helper()
	if got := s.Stats(); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

var nothing = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func TestConfigThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{Limit: -1},
		{Limit: 1, Normal: Ramp{0.9, 0.5}},
		{Limit: 1, Normal: Ramp{0.9, 1.5}},
		{Limit: 1, Background: Ramp{-0.1, 0.5}},
		{Limit: 1, Background: Ramp{0.4, 0.96}},
		{Limit: 1, MaxWait: -1},
		{Limit: 1, RetryAfter: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// The share of a class that is admitted falls from all to none along its ramp, whether the use rises or falls.
func TestClassesAreRefusedGraduallyAndInOrder(t *testing.T) {
	t.Parallel()
	const limit, tries = 100, 400
	s := mustNew(t, Config{Limit: limit, Queue: -1})
	s.rand = rand.New(rand.NewPCG(1, 2)).Float64
	admitted := func(use int, c Class) (n int) {
		for range tries {
			s.inUse = use
			tk := s.claim(c)
			if s.arrive(tk); tk.state == held {
				n++
			}
		}
		return n
	}
	for use := 0; use <= limit; use += 5 {
		b, n, c := admitted(use, Background), admitted(use, Normal), admitted(use, Critical)
		x := float64(use) / limit
		for _, p := range []struct {
			name string
			ramp Ramp
			n    int
		}{{"background", s.ramps[0], b}, {"normal", s.ramps[1], n}} {
			want := tries * min(1, max(0, (p.ramp.To-x)/(p.ramp.To-p.ramp.From)))
			// Five standard deviations of a coin. At the ends of the ramp it is exact.
			if off := float64(p.n) - want; off > 50 || off < -50 || (want == 0 || want == tries) && off != 0 {
				t.Errorf("use %v: %d of %d %s requests are admitted, want about %v", x, p.n, tries, p.name, want)
			}
		}
		if want := tries; use < limit && c != want || use == limit && c != 0 {
			t.Errorf("use %v: %d critical requests are admitted", x, c)
		}
	}
}

func TestRefusalIs503WithRetryAfterThatIsSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := mustNew(t, Config{Limit: 1, Queue: -1, RetryAfter: 3 * time.Second})
		free := hold(s, 1)
		seen := map[string]bool{}
		for range 200 {
			w := ask(t.Context(), s.Handler(nothing), Critical)
			after, err := strconv.Atoi(w.Header().Get("Retry-After"))
			if w.Code != 503 || err != nil || after < 3 || after > 6 {
				t.Fatalf("%d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
			}
			seen[w.Header().Get("Retry-After")] = true
		}
		if len(seen) < 2 {
			t.Errorf("Retry-After is always %v", seen)
		}
		free()
		if w := ask(t.Context(), s.Handler(nothing), Critical); w.Code != 200 {
			t.Errorf("%d when all is free again", w.Code)
		}
		check(t, s, Stats{})
	})
}

func TestRefusedAnswersInItsOwnWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := mustNew(t, Config{Limit: 1, Queue: -1, Refused: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"error":"busy"}`)
		})})
		defer hold(s, 1)()
		w := ask(t.Context(), s.Handler(nothing), Critical)
		if w.Code != 503 || w.Body.String() != `{"error":"busy"}` || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
		}
	})
}

// Waiting requests run by class, and within a class in the order of arrival. The newest of the lowest class makes room.
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
		s := mustNew(t, Config{Limit: 4, MaxWait: time.Minute, Normal: Ramp{1, 1}, Background: Ramp{0.5, 0.5}, Observer: l.observe})
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
		h := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler of a leaver runs") }))
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

func TestPanicFreesThePermit(t *testing.T) {
	t.Parallel()
	for _, shadow := range []bool{false, true} {
		s := mustNew(t, Config{Limit: 1, Queue: -1, Shadow: shadow})
		h := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		for range 5 {
			func() {
				defer func() {
					if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
						t.Error("the panic is lost")
					}
				}()
				ask(t.Context(), h, Critical)
			}()
			check(t, s, Stats{})
		}
	}
}

func TestExcludedRequestsAreNotCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		s := mustNew(t, Config{Limit: 1, Queue: -1, Observer: l.observe,
			Exclude: func(r *http.Request) bool { return r.URL.Path == "/background" }})
		defer hold(s, 1)()
		if w := ask(t.Context(), s.Handler(nothing), Background); w.Code != 200 {
			t.Errorf("%d", w.Code)
		}
		check(t, s, Stats{InUse: 1})
		if len(l.all()) != 1 {
			t.Errorf("%+v", l.all())
		}
	})
}

// A Route inside of Handler takes no second permit of the same Shedder, which could wait for the first for ever.
func TestRequestTakesOnePermitOfAShedder(t *testing.T) {
	t.Parallel()
	s, other := mustNew(t, Config{Limit: 1, Queue: -1}), mustNew(t, Config{Limit: 1, Queue: -1})
	h := s.Handler(other.Route(Critical)(s.Route(Critical)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if s.Stats() != (Stats{InUse: 1}) || other.Stats() != (Stats{InUse: 1}) {
			t.Errorf("%+v and %+v", s.Stats(), other.Stats())
		}
	}))))
	if w := ask(t.Context(), h, Normal); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
	check(t, s, Stats{})
	check(t, other, Stats{})
}

func TestRouteSetsTheClass(t *testing.T) {
	t.Parallel()
	l := &log{}
	s := mustNew(t, Config{Limit: 1, Observer: l.observe})
	for _, c := range []Class{Background, Normal, Critical} {
		ask(t.Context(), s.Route(c)(nothing), Normal)
		if l.count(c, Admitted) != 1 {
			t.Errorf("%v: %+v", c, l.all())
		}
	}
	ask(t.Context(), s.Route(Class(7))(nothing), Normal)
	ask(t.Context(), s.Route(Class(-7))(nothing), Normal)
	if l.count(Critical, Admitted) != 2 || l.count(Background, Admitted) != 2 {
		t.Errorf("%+v", l.all())
	}
}

// A WebSocket holds a permit until it is one. The Upgrade field alone frees nothing.
func TestHijackFreesThePermit(t *testing.T) {
	t.Parallel()
	s := mustNew(t, Config{Limit: 1, Queue: -1})
	server := httptest.NewServer(s.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Stats().InUse != 1 {
			t.Errorf("before: %+v", s.Stats())
		}
		if r.URL.Path == "/critical" {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			if s.Stats() != (Stats{}) {
				t.Errorf("after: %+v", s.Stats())
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
			return
		}
		w.(http.Flusher).Flush()
		if s.Stats().InUse != 1 {
			t.Errorf("without Hijack: %+v", s.Stats())
		}
	})))
	defer server.Close()
	for path, want := range map[string]int{"/critical": 101, "/normal": 200} {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		req.Header.Set("Connection", "keep-alive, Upgrade")
		req.Header.Set("Upgrade", "test")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
		for s.Stats().InUse > 0 { // the handler returns after its answer
			time.Sleep(time.Millisecond)
		}
	}
}

// In shadow mode every request runs at once, and the events say what would have become of it.
func TestShadowRefusesAndDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		s := mustNew(t, Config{Limit: 2, Queue: 2, MaxWait: time.Second, Shadow: true, Observer: l.observe})
		free := hold(s, 2)
		waits := hold(s, 1) // would wait, and is admitted when a permit is free
		check(t, s, Stats{InUse: 2, Queued: 1})
		began := time.Now()
		if w := ask(t.Context(), s.Handler(nothing), Critical); w.Code != 200 || time.Since(began) != 0 { // would wait, and ends before it
			t.Errorf("%d after %v", w.Code, time.Since(began))
		}
		if w := ask(t.Context(), s.Handler(nothing), Critical); w.Code != 200 { // would find no place
			t.Errorf("%d", w.Code)
		}
		check(t, s, Stats{InUse: 2, Queued: 2})
		if l.count(Critical, Admitted) != 2 || l.count(Critical, Refused) != 1 {
			t.Errorf("%+v", l.all())
		}
		free()
		check(t, s, Stats{InUse: 1})
		if l.count(Critical, Admitted) != 4 {
			t.Errorf("%+v", l.all())
		}
		waits()
		check(t, s, Stats{})

		free = hold(s, 3)
		time.Sleep(2 * time.Second) // the third would have been refused by now
		if l.count(Critical, Refused) != 2 {
			t.Errorf("%+v", l.all())
		}
		check(t, s, Stats{InUse: 2})
		free()
		check(t, s, Stats{})
		for _, e := range l.all() {
			if !e.Shadow || e.Request == nil {
				t.Errorf("%+v", e)
			}
		}
	})
}

// Whatever requests do, no more than Limit work, no more than Queue wait, each one is decided once, and in the end all permits
// are back.
func TestPermitsAreConserved(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { conserve(t, seed) })
		})
	}
}

func conserve(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	limit, queue := 1+rnd.IntN(8), 1+rnd.IntN(8)
	if rnd.IntN(4) == 0 {
		queue = -1
	}
	l := &log{}
	s := mustNew(t, Config{Limit: limit, Queue: queue, MaxWait: 20 * time.Millisecond, Shadow: seed%5 == 4, Observer: l.observe})
	var mu sync.Mutex
	working, ran, refused := 0, 0, 0
	type job struct {
		at, takes, leaves time.Duration
		class             Class
		panics            bool
	}
	jobs := make([]job, 300)
	for i := range jobs {
		jobs[i] = job{
			at:     time.Duration(rnd.IntN(500)) * time.Millisecond,
			takes:  time.Duration(rnd.IntN(30)) * time.Millisecond,
			leaves: time.Duration(1+rnd.IntN(100)) * time.Millisecond,
			class:  Class(rnd.IntN(3) - 1),
			panics: rnd.IntN(10) == 0,
		}
	}
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Go(func() {
			time.Sleep(j.at)
			ctx, cancel := context.WithTimeout(context.Background(), j.leaves)
			defer cancel()
			defer func() { _ = recover() }()
			w := ask(ctx, s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				mu.Lock()
				working++
				ran++
				if working > limit && !s.cfg.Shadow {
					t.Errorf("%d work at once, the limit is %d", working, limit)
				}
				mu.Unlock()
				time.Sleep(j.takes)
				mu.Lock()
				working--
				mu.Unlock()
				if j.panics {
					panic("handler")
				}
			})), j.class)
			if w.Code == 503 {
				mu.Lock()
				refused++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	time.Sleep(time.Second) // in shadow mode some would still wait
	check(t, s, Stats{})
	if ran+refused != len(jobs) || len(l.all()) != len(jobs) || s.cfg.Shadow && refused > 0 {
		t.Errorf("%d ran, %d were refused, %d events of %d requests", ran, refused, len(l.all()), len(jobs))
	}
	for _, e := range l.all() {
		if e.InUse < 0 || e.InUse > limit || e.Queued < 0 || e.Queued > max(0, queue) {
			t.Fatalf("%+v with limit %d and queue %d", e.Stats, limit, queue)
		}
	}
}

// The same with real goroutines, for the race detector.
func TestPermitsAreConservedInParallel(t *testing.T) {
	t.Parallel()
	l := &log{}
	s := mustNew(t, Config{Limit: 4, Queue: 3, MaxWait: time.Millisecond, Observer: l.observe})
	h := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(50 * time.Microsecond) }))
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for n := range 100 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n+1)*20*time.Microsecond)
				ask(ctx, h, Class(g%3-1))
				cancel()
			}
		})
	}
	all.Wait()
	check(t, s, Stats{})
	if len(l.all()) != 1600 {
		t.Errorf("%d events", len(l.all()))
	}
}
