package shed

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A load is what a handler does, on workers that all requests share, and the Limit that suits it.
type load struct {
	name    string
	limit   int
	handler func() http.Handler
}

// capacity is how many requests the handler does in a second, measured, as sleeping takes longer on
// some machines.
func (l load) capacity() float64 {
	h, began, n := l.handler(), time.Now(), atomic.Int64{}
	var all sync.WaitGroup
	for range 2 * l.limit {
		all.Go(func() {
			for time.Since(began) < 2*time.Second {
				h.ServeHTTP(nil, httptest.NewRequest("GET", "/", nil))
				n.Add(1)
			}
		})
	}
	all.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}

var loads = []load{
	// Four processors, twenty milliseconds of work for each request. They are shared in slices of
	// two milliseconds, as by a scheduler. The work goes on after its client has left, as computing
	// does. They sleep, so that the load is the same on every machine.
	{"cpu", 5, func() http.Handler {
		processors := make(chan struct{}, 4)
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			for range 10 {
				processors <- struct{}{}
				time.Sleep(2 * time.Millisecond)
				<-processors
			}
		})
	}},
	// Ten connections, each held for fifty milliseconds. A request whose client has left no longer
	// waits for one.
	{"pool", 10, func() http.Handler {
		pool := make(chan struct{}, 10)
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case pool <- struct{}{}:
				time.Sleep(50 * time.Millisecond)
				<-pool
			case <-r.Context().Done():
			}
		})
	}},
}

// patience is how long a client of the benchmark waits.
const patience = time.Second

// BenchmarkOverload sends requests at fixed times, whether answers come or not, for six seconds: at
// a fifth of what the handler can do, and at twice of it with and without a Shedder. A quarter of
// them are critical, which is half of what the handler can do at twice the load. It reports the
// share of critical requests with a 200 within a second, their 99th percentile, and all good
// answers in a second, after a second of warming up.
func BenchmarkOverload(b *testing.B) {
	for _, l := range loads {
		capacity := l.capacity()
		for _, run := range []struct {
			name   string
			factor float64
			shed   bool
		}{{"unloaded", 0.2, true}, {"twice/shed", 2, true}, {"twice/without", 2, false}} {
			b.Run(l.name+"/"+run.name, func(b *testing.B) {
				for range b.N {
					h := l.handler()
					if run.shed {
						h = mustNew(b, Config{Limit: l.limit}).Handler(h)
					}
					overload(b, h, capacity*run.factor)
				}
			})
		}
	}
}

func overload(b *testing.B, h http.Handler, rate float64) {
	const lasts, warm = 6 * time.Second, time.Second
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Shutdown(context.Background()) }() // waits for what still works
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: patience}
	defer client.CloseIdleConnections()
	classes := []Class{Critical, Normal, Normal, Normal, Background, Background, Background, Critical}

	rnd := rand.New(rand.NewPCG(1, 1))
	var mu sync.Mutex
	var all sync.WaitGroup
	sent, good, other := 0, 0, 0
	var took []time.Duration
	began := time.Now()
	for at := time.Duration(0); at < lasts; at += time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)) {
		time.Sleep(time.Until(began.Add(at)))
		class := classes[rnd.IntN(len(classes))]
		all.Go(func() {
			d, ok := get(client, "http://"+listener.Addr().String()+"/"+class.String(), began.Add(at))
			if at < warm {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if ok && class != Critical {
				other++
			}
			if class == Critical {
				sent++
				took = append(took, d)
				if ok {
					good++
				}
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*float64(good)/float64(sent), "critical-%")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "critical-p99-ms")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "critical-p50-ms")
	b.ReportMetric(rate, "sent/s")
	b.ReportMetric(float64(good+other)/(lasts-warm).Seconds(), "good/s")
}

// The same by a clock of its own, so that a busy machine changes nothing, and without a network: at
// twice what the handler can do, critical requests are served with a Shedder, and without one
// nearly none of them in time. With -v it prints what it has measured.
func TestCriticalRequestsAreServedAtTwiceTheCapacity(t *testing.T) {
	t.Parallel()
	const capacity = 200 // of both loads, by their own numbers
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			share := func(name string, rate float64, shed bool) (good float64) {
				synctest.Test(t, func(t *testing.T) {
					h := l.handler()
					if shed {
						h = mustNew(t, Config{Limit: l.limit}).Handler(h)
					}
					var p99 time.Duration
					var all float64
					good, p99, all = simulate(h, rate)
					t.Logf("%s: %.1f%% of the critical requests within %v, 99%% of them within %v, %.0f good answers in a second",
						name, 100*good, patience, p99.Round(time.Millisecond), all)
				})
				return good
			}
			if good := share("unloaded", 0.2*capacity, true); good != 1 {
				t.Errorf("unloaded %v are served", good)
			}
			with, without := share("with", 2*capacity, true), share("without", 2*capacity, false)
			if with < 0.98 || without > 0.5 {
				t.Errorf("%v are served with a Shedder, %v without", with, without)
			}
		})
	}
}

// simulate is overload in a bubble of synctest.
func simulate(h http.Handler, rate float64) (good float64, p99 time.Duration, perSecond float64) {
	const lasts, warm = 20 * time.Second, time.Second
	rnd := rand.New(rand.NewPCG(1, 1))
	var mu sync.Mutex
	var all sync.WaitGroup
	var took []time.Duration
	inTime, goodOnes := 0, 0
	began := time.Now()
	for at := time.Duration(0); at < lasts; at += time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)) {
		time.Sleep(time.Until(began.Add(at)))
		class := []Class{Critical, Normal, Normal, Normal, Background, Background, Background, Critical}[rnd.IntN(8)]
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			w := ask(ctx, h, class)
			d := time.Since(began.Add(at))
			if at < warm {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ok := w.Code == 200 && d < patience
			if ok {
				inTime++
			}
			if class == Critical {
				took = append(took, min(d, patience))
				if ok {
					goodOnes++
				}
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return float64(goodOnes) / float64(len(took)), took[len(took)*99/100], float64(inTime) / (lasts - warm).Seconds()
}

// get is the time from when the request should have been sent to its answer, and whether that is a
// 200.
func get(client *http.Client, url string, at time.Time) (time.Duration, bool) {
	ctx, cancel := context.WithDeadline(context.Background(), at.Add(patience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return 0, false
	}
	resp, err := client.Do(req)
	if err != nil {
		return time.Since(at), false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return time.Since(at), err == nil && resp.StatusCode == 200
}

// BenchmarkAdmit is what the middleware adds to a request while the server has room.
func BenchmarkAdmit(b *testing.B) {
	h := mustNew(b, Config{Limit: 1000}).Handler(nothing)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		for pb.Next() {
			h.ServeHTTP(w, r)
		}
	})
}
