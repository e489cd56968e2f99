package integration

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/upstream"
)

// An API that asks to be left alone is, by whoever waits in line already and by whoever comes then,
// in another process too; and all come in the end.
func TestNobodyComesBeforeTheAPIHasSaid(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for range 10 {
		if comeToAnAPI(t, pool) {
			return
		}
	}
	t.Error("the pause never was there before the next one's turn")
}

// comeToAnAPI is an attempt, which says nothing if the pause came so late that it was somebody's
// turn before.
func comeToAnAPI(t *testing.T, pool *pgxpool.Pool) (inTime bool) {
	t.Helper()
	const asked = 1500 * time.Millisecond
	var mu sync.Mutex
	var refused, paused time.Time
	early, served := 0, 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch now := time.Now(); {
		case refused.IsZero():
			refused = now
			w.Header().Set("Retry-After-Ms", "1500")
			w.WriteHeader(http.StatusTooManyRequests)
		case now.Sub(refused) < asked:
			early++
		case r.URL.Path != "/hurried":
			served++
		}
	}))
	t.Cleanup(api.Close)

	limit := ratelimit.MustDefine("api",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	var clients []*http.Client
	for range 2 {
		clients = append(clients, &http.Client{Transport: &upstream.Transport{
			Base: base, Limiter: rig.Limiter(t, ratelimit.Config{}).Autocommit(pool),
			Requests: func(r *http.Request) []ratelimit.Request { return []ratelimit.Request{limit.For(r.URL.Host)} },
		}})
	}
	get := func(c *http.Client) int {
		resp, err := c.Get(api.URL)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			mu.Lock()
			paused = time.Now()
			mu.Unlock()
		}
		return resp.StatusCode
	}
	statuses := make([]int, 4)
	var all sync.WaitGroup
	began := time.Now()
	for i := range statuses { // one of them goes at once, and meets the 429
		all.Go(func() { statuses[i] = get(clients[i%2]) })
	}
	hurried := &http.Client{Transport: clients[1].Transport, Timeout: 300 * time.Millisecond}
	until(t, func() bool { mu.Lock(); defer mu.Unlock(); return !refused.IsZero() })
	resp, err := hurried.Get(api.URL + "/hurried")
	var denied *ratelimit.DeniedError
	switch {
	case err == nil: // the machine is so slow that the time has passed
		_ = resp.Body.Close()
	case !errors.As(err, &denied) && !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("with 300 ms to go: %v, want a denial", err)
	}
	all.Wait()
	if paused.Sub(began) > 900*time.Millisecond { // the next one's turn is a second after the first's
		return false
	}
	count := map[int]int{}
	for _, s := range statuses {
		count[s]++
	}
	if early != 0 || served != 3 || count[200] != 3 || count[429] != 1 {
		t.Errorf("%d came early, %d were served: %v", early, served, count)
	}
	return true
}
