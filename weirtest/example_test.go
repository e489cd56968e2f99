package weirtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

var SignIn = ratelimit.MustDefine("signIn", ratelimit.TokenBucket{Rate: 5, Period: 15 * time.Minute})

// Server is code under test. It asks for no more than it calls.
type Server struct {
	Limits interface {
		RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	res, err := s.Limits.RateLimit(r.Context(), SignIn.For(r.FormValue("account")))
	switch {
	case err != nil:
		http.Error(w, "come again", http.StatusServiceUnavailable)
	case !res.OK:
		w.Header().Set("Retry-After", fmt.Sprint(int(res.RetryAfter().Seconds())))
		http.Error(w, "too many attempts", http.StatusTooManyRequests)
	}
}

func Example() {
	clock := new(weirtest.Clock)
	limits := &weirtest.Limiter{Clock: clock}
	server := &Server{Limits: limits}
	get := func() {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?account=alice", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}

	get()
	limits.Deny(SignIn, time.Minute)
	get()
	clock.Add(time.Minute)
	get()
	limits.Fail(errors.New("the database is away"))
	get()
	fmt.Println(limits.Calls()[0].Requests[0] == SignIn.For("alice"))
	// Output:
	// 200 ""
	// 429 "60"
	// 200 ""
	// 503 ""
	// true
}

// saveAttempt is code under test that takes in a transaction, together with what it writes.
func saveAttempt(ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, account string) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		res, err := limiter.RateLimit(ctx, tx, SignIn.For(account))
		if err != nil {
			return err
		}
		if !res.OK {
			return res.Err()
		}
		_, err = tx.Exec(ctx, `INSERT INTO attempt VALUES ($1)`, account)
		return err
	})
}

func TestNothingIsWrittenOfAnAttemptThatIsDenied(t *testing.T) {
	pool := pgtest.Pool(t) // your own way to a test database, with schema.Migrate
	if _, err := pool.Exec(t.Context(), `CREATE TABLE attempt (account text)`); err != nil {
		t.Fatal(err)
	}

	clock := new(weirtest.Clock)
	limiter, err := ratelimit.New(ratelimit.Config{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	verbs := limiter.Autocommit(pool)

	weirtest.Drain(t, verbs, SignIn.For("alice"))
	err = saveAttempt(t.Context(), limiter, pool, "alice")
	weirtest.Denied(t, ratelimit.Result{}, err, SignIn)

	clock.Add(3 * time.Minute) // one flows in
	if err := saveAttempt(t.Context(), limiter, pool, "alice"); err != nil {
		t.Fatal(err)
	}
	weirtest.Value(t, verbs, SignIn.For("alice"), 0)

	weirtest.Fill(t, verbs, SignIn.For("alice"))
	weirtest.Value(t, verbs, SignIn.For("alice"), 5)

	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM attempt`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d attempts were written, %v", n, err)
	}
}
