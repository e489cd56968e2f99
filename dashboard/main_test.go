package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	search  = ratelimit.MustDefine("search", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
	reports = ratelimit.MustDefine("reports", ratelimit.FixedWindow{Rate: 12, Period: time.Hour})
	feed    = ratelimit.MustDefine("feed", ratelimit.TokenBucket{Rate: 40, Period: time.Minute}, ratelimit.Shards(4))
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return noon }

// begins counts transactions.
type begins struct {
	*pgxpool.Pool
	n atomic.Int64
}

func (b *begins) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	b.n.Add(1)
	return b.Pool.BeginTx(ctx, opts)
}

func newDashboard(t *testing.T, db inspect.DB, cfg Config) *Dashboard {
	t.Helper()
	d, err := New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// take makes calls at noon.
func take(t *testing.T, pool *pgxpool.Pool, o ratelimit.Observer, requests ...ratelimit.Request) *ratelimit.Autocommit {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: clock, Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	a := l.Autocommit(pool)
	for _, r := range requests {
		if _, err := a.RateLimit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// get asks a handler, with fields of the header in pairs.
func get(t *testing.T, h http.Handler, method, target string, fields ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// data is a good answer.
func data[T any](t *testing.T, h http.Handler, target string, fields ...string) (v T) {
	t.Helper()
	r := get(t, h, http.MethodGet, target, fields...)
	body := r.Body.String()
	if r.Code != http.StatusOK || r.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%s: %d %s", target, r.Code, body)
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}
