// Third-party-apis calls an API from two clients that share its limit, and backs off when the API asks for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/upstream"
)

var partnerAPI = ratelimit.MustDefine("partnerAPI", ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(1)})

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := schema.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	var closed atomic.Bool // the API answers 429 while it is set
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if closed.Load() {
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()
	newClient := func(timeout time.Duration) *http.Client { // one in each process, say
		return &http.Client{Timeout: timeout, Transport: &upstream.Transport{
			Limiter:  limiter.Autocommit(pool),
			Requests: func(*http.Request) []ratelimit.Request { return []ratelimit.Request{partnerAPI.Global()} },
		}}
	}
	call := func(client *http.Client) string {
		resp, err := client.Get(api.URL)
		switch {
		case errors.Is(err, ratelimit.ErrDenied):
			return "not sent, as it would be too late"
		case err != nil:
			return err.Error()
		}
		_ = resp.Body.Close()
		return resp.Status
	}

	began, patient, all := time.Now(), newClient(time.Minute), sync.WaitGroup{}
	for _, client := range []*http.Client{patient, newClient(time.Minute)} {
		all.Go(func() {
			for range 6 {
				call(client)
			}
		})
	}
	all.Wait()
	fmt.Println("twelve calls took a second or more:", time.Since(began) > time.Second)
	closed.Store(true)
	fmt.Println("the API asks for three seconds of rest:", call(patient))
	closed.Store(false)
	fmt.Println("a client that waits for a second:", call(newClient(time.Second)))
	fmt.Println("a client that waits for a minute:", call(patient))
}
