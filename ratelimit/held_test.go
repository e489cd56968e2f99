package ratelimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// In a pool of one connection nobody waits for a held row for a while after it was waited for. Close
// waits for no more than its 5 seconds of that.
func TestCloseDoesNotWaitUntilAHeldRowMayBeWaitedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/none?pool_max_conns=1")
		if err != nil {
			t.Fatal(err)
		}
		cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			time.Sleep(4 * time.Second)
			return errors.New("no server")
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		l, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		calls, err := resolveAll([]Request{MustDefine("held", TokenBucket{Rate: 10, Period: time.Second}).For("k")})
		if err != nil {
			t.Fatal(err)
		}
		c := l.Coalesce(pool)
		w := &waiter{calls: calls, since: time.Now().Add(-time.Minute), done: make(chan struct{}, 1)}
		w.state.Store(taken)
		c.held.hold(w, calls[0].Place, 0)
		<-w.done // after four seconds, after which it rests for twelve
		began := time.Now()
		c.Close()
		if d := time.Since(began); d > tripTime+inLine {
			t.Errorf("Close took %v", d)
		}
	})
}
