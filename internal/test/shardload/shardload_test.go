package shardload

import (
	"math"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The audit bites: what it sums up is what the limit has, and the load makes denials to judge by
// it.
func TestTheAuditSeesWhatTheLimitHas(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3, 16} {
		l := Load{Shards: shards, Capacity: 60, Looks: new(Looks), Level: pgx.Serializable}
		pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = l.Looks })
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		l.Conns = []*pgxpool.Conn{conn}
		if err := l.Open(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		even, err := l.Even(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		surge, err := l.Surge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if even.Calls != 90 || even.Aborts+surge.Aborts != 0 || surge.Denied == 0 || surge.Denied == surge.Calls ||
			even.Falsely+surge.Falsely != 0 || shards > 1 && surge.Looks < surge.Denied {
			t.Errorf("%d shards: %+v, %+v", shards, even, surge)
		}
		if denied := l.OneRow(); shards == 1 && math.Abs(denied-even.Denied-surge.Denied) > 1 {
			t.Errorf("one row denied %v, and is said to deny %v", even.Denied+surge.Denied, denied)
		}
		if _, err := l.offer(t.Context(), 30, 2*share); err != nil { // so that it is not full
			t.Fatal(err)
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		state, err := l.limiter.Value(t.Context(), tx, l.limit.For(l.key))
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		if err := tx.QueryRow(t.Context(), sumSQL, l.key, l.Shards, l.Capacity/float64(l.Shards),
			l.now).Scan(&sum); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if math.Abs(sum-state.Value) > 1e-6 || sum == l.Capacity {
			t.Errorf("%d shards: the audit sums up %v of %v", shards, sum, state.Value)
		}
	}
}
