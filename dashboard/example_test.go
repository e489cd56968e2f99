package dashboard_test

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weir-go/weir/dashboard"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/ratelimit"
)

var Search = ratelimit.MustDefine("search", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})

// onlyOperators is whatever your program lets people in by; here a password.
func onlyOperators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte("correct horse")) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="operators"`)
			http.Error(w, "operators only", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func Example() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()

	decisions := &dashboard.Decisions{}
	limiter, err := ratelimit.New(ratelimit.Config{Observer: observe.All(decisions, &observe.Log{})})
	if err != nil {
		log.Fatal(err)
	}
	page, err := dashboard.New(pool, dashboard.Config{Decisions: decisions, HideKeys: true})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/weir/", onlyOperators(http.StripPrefix("/weir", page)))

	if err := limiter.Autocommit(pool).Consume(ctx, Search.For("acme").Count(4)); err != nil {
		log.Fatal(err)
	}
	web := httptest.NewServer(mux)
	defer web.Close()
	for _, password := range []string{"", "correct horse"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+"/weir/api/keys?limit=search", nil)
		if err != nil {
			log.Fatal(err)
		}
		r.SetBasicAuth("op", password)
		answer, err := web.Client().Do(r)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		fmt.Println(answer.StatusCode, strings.Contains(string(body), `"capacity":10`),
			strings.Contains(string(body), "acme"))
	}
	// Output:
	// 401 false false
	// 200 true false
}
