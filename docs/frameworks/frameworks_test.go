package frameworks_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/docs/frameworks"
	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Under each router exactly the capacity is granted, and handlers find the result.
func TestRouters(t *testing.T) {
	t.Parallel()
	type router = func(frameworks.Middleware, http.HandlerFunc) http.Handler
	routers := map[string]router{"chi": frameworks.Chi, "echo": frameworks.Echo, "gin": frameworks.Gin}
	for name, router := range routers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter, err := ratelimit.New(ratelimit.Config{})
			if err != nil {
				t.Fatal(err)
			}
			limit := ratelimit.MustDefine(name, ratelimit.FixedWindow{Rate: 5, Period: 1000 * time.Hour})
			guard := &httplimit.Guard{Limiter: limiter.Autocommit(pgtest.Pool(t))}
			var ran, denied atomic.Int64
			h := router(guard.Limit(httplimit.By(limit, httplimit.ByAddress())),
				func(_ http.ResponseWriter, r *http.Request) {
					if _, ok := httplimit.FromContext(r.Context()); !ok {
						t.Error("the handler finds no result")
					}
					ran.Add(1)
				})
			var all sync.WaitGroup
			for range 12 {
				all.Go(func() {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/search", nil))
					if w.Header().Get("RateLimit") == "" {
						t.Errorf("%d %v", w.Code, w.Header())
					}
					if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "" {
						denied.Add(1)
					}
				})
			}
			all.Wait()
			if ran.Load() != 5 || denied.Load() != 7 {
				t.Errorf("%d ran, %d were denied", ran.Load(), denied.Load())
			}
		})
	}
}
