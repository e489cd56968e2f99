package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var (
	PerAddress = ratelimit.MustDefine("perAddress",
		ratelimit.TokenBucket{Rate: 600, Period: time.Minute, Capacity: ratelimit.Tokens(100)})
	PerAPIKey = ratelimit.MustDefine("perAPIKey", ratelimit.FixedWindow{Rate: 1000, Period: time.Hour})
	Exports   = ratelimit.MustDefine("exports", ratelimit.FixedWindow{Rate: 2, Period: 24 * time.Hour})
)

func Example() {
	pool, done := pgtest.Example(`CREATE TABLE export (owner text, format text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{RememberDenials: true})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Coalesce(pool)
	defer limits.Close()
	mux := http.NewServeMux()
	search := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "found") }

	guard := &httplimit.Guard{Limiter: limits}
	perAddress := guard.Limit(httplimit.By(PerAddress, httplimit.ByAddress()))
	mux.Handle("GET /search", perAddress(http.HandlerFunc(search)))

	for _, address := range []string{"203.0.113.7:4711", "@"} {
		r := httptest.NewRequest(http.MethodGet, "/search", nil)
		r.RemoteAddr = address
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("RateLimit"), w.Body)
	}
	// Output:
	// 200 "perAddress";q=100;w=10 "perAddress";r=99;t=1 found
	// 403   {"title":"Forbidden","status":403}
}

// routes puts the limit by address around the limit by key. So a client that makes up keys is denied
// before its keys are looked at.
func routes(limits *ratelimit.Coalesced, handler http.Handler) http.Handler {
	guard := &httplimit.Guard{Limiter: limits, Timeout: 10 * time.Second}
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	perAddress := guard.Limit(httplimit.By(PerAddress, httplimit.ByAddress(proxies)))

	perKey := httplimit.By(PerAPIKey, httplimit.ByHeader("X-Api-Key"))
	health := func(r *http.Request) bool { return r.URL.Path == "/health" }
	return perAddress(guard.Limit(perKey.Cost(cost).Unless(health))(handler))
}

// cost is ten for what reads much.
func cost(r *http.Request) float64 {
	if r.URL.Path == "/report" {
		return 10
	}
	return 1
}

func ExampleAsk() {
	pool, done := pgtest.Example(`CREATE TABLE export (owner text, format text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{RememberDenials: true})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Coalesce(pool)
	defer limits.Close()
	h := routes(limits, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, path := range []string{"/report", "/health", "/search"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr = "10.0.0.1:80"
		r.Header.Set("X-Forwarded-For", "6.6.6.6, 203.0.113.7") // the first is what the client has sent
		r.Header.Set("X-Api-Key", "k-123")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(path, w.Code, w.Header().Values("RateLimit-Policy"))
	}
	var address string
	if err := pool.QueryRow(context.Background(),
		`SELECT key FROM weir_balance WHERE name = 'perAddress'`).Scan(&address); err != nil {
		log.Fatal(err)
	}
	fmt.Println("all from", address)
	// Output:
	// /report 200 ["perAddress";q=100;w=10 "perAPIKey";q=1000;w=3600]
	// /health 200 ["perAddress";q=100;w=10]
	// /search 200 ["perAddress";q=100;w=10 "perAPIKey";q=1000;w=3600]
	// all from 203.0.113.7
}

// exporter takes the token in the transaction that writes the order.
type exporter struct {
	limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	guard   *httplimit.Guard
}

var errBadFormat = errors.New("no such format")

func (e *exporter) order(w http.ResponseWriter, r *http.Request) {
	user, format := r.PathValue("user"), r.FormValue("format")
	var res ratelimit.Result
	err := e.limiter.InTx(r.Context(), e.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if res, err = e.limiter.RateLimit(ctx, tx, Exports.For(httplimit.Good(user))); err != nil {
			return err
		}
		if !res.OK {
			return res.Err() // rolls back: nothing was taken
		}
		if format != "csv" {
			return errBadFormat // so does this
		}
		_, err = tx.Exec(ctx, `INSERT INTO export (owner, format) VALUES ($1, $2)`, user, format)
		return err
	})
	if errors.Is(err, errBadFormat) {
		http.Error(w, errBadFormat.Error(), http.StatusUnprocessableEntity)
		return
	}
	if !e.guard.Pass(w, r, res, err) {
		return // it has answered
	}
	w.WriteHeader(http.StatusAccepted)
}

// A handler that takes in its own transaction: an order that fails costs nothing.
func ExampleGuard_Pass() {
	pool, done := pgtest.Example(`CREATE TABLE export (owner text, format text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	e := &exporter{limiter, pool, &httplimit.Guard{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /users/{user}/exports", e.order)
	for _, format := range []string{"csv", "stone", "csv", "csv"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/users/alice/exports?format="+format, nil))
		fmt.Println(format, w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("Retry-After") != "")
	}
	// Output:
	// csv 202 "exports";q=2;w=86400 false
	// stone 422  false
	// csv 202 "exports";q=2;w=86400 false
	// csv 429 "exports";q=2;w=86400 true
}

// notModified costs nothing.
func notModified(limits *ratelimit.Coalesced, w http.ResponseWriter, r *http.Request) {
	if res, ok := httplimit.FromContext(r.Context()); ok {
		if err := limits.GiveBack(r.Context(), res); err != nil {
			log.Println("a token is lost:", err)
		}
	}
	w.WriteHeader(http.StatusNotModified)
}

func ExampleFromContext() {
	pool, done := pgtest.Example(`CREATE TABLE export (owner text, format text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Coalesce(pool)
	defer limits.Close()
	guard := &httplimit.Guard{Limiter: limits}
	h := guard.Limit(httplimit.By(Exports, httplimit.ByAddress()))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { notModified(limits, w, r) }))
	for range 5 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Print(w.Code, " ")
	}
	// Output: 304 304 304 304 304
}

// plain answers denials in plain text, and leaves the rest as it is.
func plain(w http.ResponseWriter, _ *http.Request, refusal httplimit.Refusal) {
	if refusal.Status != http.StatusTooManyRequests {
		refusal.Write(w)
		return
	}
	http.Error(w, "too many requests; retry in "+w.Header().Get("Retry-After")+" s", refusal.Status)
}

func ExampleRefusal() {
	guard := &httplimit.Guard{Refuse: plain}
	at := time.Now()
	w := httptest.NewRecorder()
	guard.Pass(w, httptest.NewRequest(http.MethodGet, "/", nil),
		ratelimit.Result{At: at, RetryAt: at.Add(time.Hour), Limit: "exports"}, nil)
	fmt.Println(w.Code, w.Body.String()[:27])
	// Output: 429 too many requests; retry in
}

var API = ratelimit.MustDefine("api", ratelimit.TokenBucket{Rate: 60, Period: time.Minute}) // without a plan

var plans = map[string]ratelimit.Rule{"pro": ratelimit.TokenBucket{Rate: 600, Period: time.Minute}}

// in production, what your authentication has found
func userOf(r *http.Request) string         { return r.Header.Get("User") }
func planOf(r *http.Request) ratelimit.Rule { return plans[r.Header.Get("Plan")] }

// Each user is limited by the plan of the account.
func ExampleAsk_Rule() {
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard := &httplimit.Guard{Limiter: limiter.Autocommit(pool)}
	perUser := guard.Limit(httplimit.By(API, httplimit.ByUser(userOf)).Rule(planOf))
	h := perUser(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for user, plan := range map[string]string{"ann": "pro", "bob": ""} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User", user)
		r.Header.Set("Plan", plan)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(user, w.Code, w.Header().Get("RateLimit-Policy"))
	}
	// Unordered output:
	// ann 200 "api";q=600;w=60
	// bob 200 "api";q=60;w=60
}

// byCountry is an Ask of one's own: it asks by another rule where there is one.
func byCountry(r *http.Request) ([]ratelimit.Request, error) {
	country := r.Header.Get("X-Country") // which our proxy sets
	if country == "" {
		return nil, httplimit.ErrNoKey
	}
	request := PerAddress.For(httplimit.Good(country))
	if country == "AQ" {
		request = request.Rule(ratelimit.TokenBucket{Rate: 6, Period: time.Minute})
	}
	return []ratelimit.Request{request}, nil
}

func ExampleGuard_Limit() {
	pool, done := pgtest.Example(`CREATE TABLE export (owner text, format text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard := &httplimit.Guard{Limiter: &ratelimit.FailOpen{Limiter: limiter.Autocommit(pool),
		For: time.Minute, Timeout: 200 * time.Millisecond}}
	h := guard.Limit(byCountry)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, country := range []string{"AQ", "", "CH"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Country", country)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Values("RateLimit-Policy"))
	}
	// Output:
	// 200 ["perAddress";q=6;w=60]
	// 403 []
	// 200 ["perAddress";q=100;w=10]
}
