package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgserver"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/upstream"
)

var PartnerAPI = ratelimit.MustDefine("partnerAPI", ratelimit.TokenBucket{Rate: 50, Period: time.Second})

// newClient is a client of the partner's API that keeps to its limit, by tenant, whichever process it is in.
func newClient(limiter *ratelimit.Limiter, pool *pgxpool.Pool, tenant string) *http.Client {
	return &http.Client{
		Timeout: 10 * time.Second,
		Transport: &upstream.Transport{
			Limiter:  limiter.Autocommit(pool),
			Requests: func(*http.Request) []ratelimit.Request { return []ratelimit.Request{PartnerAPI.For(tenant)} },
		},
	}
}

// The API refuses a call. Until the time is over that it asks for, no call is sent: one that cannot wait for as long is denied here.
func ExampleTransport() {
	pool := examplePool()
	defer pool.Close()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer api.Close()

	client := newClient(limiter, pool, "acme")
	for range 2 {
		resp, err := client.Get(api.URL)
		var denied *ratelimit.DeniedError
		switch {
		case errors.As(err, &denied):
			fmt.Println("not sent: it could be in", denied.RetryAfter().Round(time.Minute))
		case err != nil:
			log.Fatal(err)
		default:
			_ = resp.Body.Close()
			fmt.Println("the API says", resp.StatusCode)
		}
	}
	// Output:
	// the API says 429
	// not sent: it could be in 1h0m0s
}

// examplePool is a pool on a schema of its own, of a server that ends with this process.
func examplePool() *pgxpool.Pool {
	ctx := context.Background()
	server, err := pgserver.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	cfg, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		log.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = "weir_upstream_example"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	for _, sql := range []string{`DROP SCHEMA IF EXISTS weir_upstream_example CASCADE`, `CREATE SCHEMA weir_upstream_example`} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			log.Fatal(err)
		}
	}
	if err := schema.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	return pool
}
