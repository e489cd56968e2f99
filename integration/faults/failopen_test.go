package faults

import (
	"log/slog"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// A server that is gone is an outage: calls get their share from memory until it is back.
func TestCallsAreLetThroughWhileTheServerIsKilled(t *testing.T) {
	t.Parallel()
	ours(t)
	server, pool := pgtest.Own(t)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const share = 5
	rule := ratelimit.TokenBucket{Rate: 2 * share, Period: 10_000 * time.Hour}
	limit := ratelimit.MustDefine("killed", rule)
	together := limiter.Coalesce(pool)
	defer together.Close()
	f := &ratelimit.FailOpen{Limiter: together, Share: 0.5, For: time.Hour,
		Timeout: time.Minute, // a killed server fails calls at once; a slow one is no outage
		Logger:  slog.New(slog.DiscardHandler)}
	decides := func() { // in the end: on a machine that stands still the server is as good as away
		t.Helper()
		for end := time.Now().Add(hung); ; time.Sleep(10 * time.Millisecond) {
			res, err := f.RateLimit(t.Context(), limit.For("other"))
			if err == nil && res.Decided() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the server is there: %+v, %v", res, err)
			}
		}
	}
	decides()
	for _, want := range []int{share, 0} { // the second comes too soon after the first to have more
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		through := 0
		for range 3 * share {
			res, err := f.RateLimit(t.Context(), limit.For("k"))
			if err != nil || res.Decided() {
				t.Errorf("%+v, %v", res, err)
			}
			if res.OK {
				through++
			}
		}
		if through != want {
			t.Errorf("%d were let through, want %d", through, want)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		decides()
	}
}
