package shed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

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

// A Route inside of Handler takes no second permit of the same Shedder, which could wait for the
// first for ever.
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
			_, _ = io.WriteString(conn,
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
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

// Whatever requests do, no more than Limit work, no more than Queue wait, each one is decided once,
// and in the end all permits are back.
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
	s := mustNew(t, Config{Limit: limit, Queue: queue, MaxWait: 20 * time.Millisecond,
		Shadow: seed%5 == 4, Observer: l.observe})
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
