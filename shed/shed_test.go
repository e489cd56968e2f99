package shed

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
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
		go ask(context.Background(), s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			<-end
		})), Critical)
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

// The share of a class that is admitted falls from all to none along its ramp, whether the use
// rises or falls.
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
	for least, want := range map[time.Duration][]string{
		0: {"1", "2"}, 3 * time.Second: {"3", "4", "5", "6"}, 500 * time.Millisecond: {"1", "2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := mustNew(t, Config{Limit: 1, Queue: -1, RetryAfter: least})
			free := hold(s, 1)
			seen := map[string]bool{}
			for range 200 {
				w := ask(t.Context(), s.Handler(nothing), Critical)
				if w.Code != 503 {
					t.Fatal(w.Code)
				}
				seen[w.Header().Get("Retry-After")] = true
			}
			if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
				t.Errorf("%v: Retry-After is %v, want %v", least, got, want)
			}
			free()
			if w := ask(t.Context(), s.Handler(nothing), Critical); w.Code != 200 {
				t.Errorf("%d when all is free again", w.Code)
			}
			check(t, s, Stats{})
		})
	}
}

func TestRefusedAnswersInItsOwnWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := mustNew(t, Config{Limit: 1, Queue: -1,
			Refused: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
		// would wait, and ends before it
		if w := ask(t.Context(), s.Handler(nothing), Critical); w.Code != 200 || time.Since(began) != 0 {
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
