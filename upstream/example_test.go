package upstream_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/upstream"
)

var PartnerAPI = ratelimit.MustDefine("partnerAPI", ratelimit.TokenBucket{Rate: 50, Period: time.Second})

func TestMain(m *testing.M) { pgtest.Main(m) }

// newClient is a client of the partner's API that keeps to its limit, by tenant, whichever process
// it is in.
func newClient(limiter *ratelimit.Limiter, pool *pgxpool.Pool, tenant string) *http.Client {
	return &http.Client{
		Timeout: 10 * time.Second,
		Transport: &upstream.Transport{
			Limiter:  limiter.Autocommit(pool),
			Requests: func(*http.Request) []ratelimit.Request { return []ratelimit.Request{PartnerAPI.For(tenant)} },
		},
	}
}

// The API refuses a call. Until the time is over that it asks for, no call is sent: one that cannot
// wait for as long is denied here.
func ExampleTransport() {
	pool, done := pgtest.Example()
	defer done()
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
