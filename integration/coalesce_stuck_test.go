package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Calls that are decided alone take turns while their rows are held. One whose row is free does not
// wait for as long as all others may wait for theirs.
func TestACallWhoseRowIsFreeHasItsTurnSoon(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it locks the rows of many keys in one statement")
	pool := pgtest.Pool(t, rig.Most(12))
	rule := ratelimit.TokenBucket{Rate: 1e6, Period: time.Second}
	plain, hot := ratelimit.MustDefine("plain", rule), ratelimit.MustDefine("hot", rule, ratelimit.Shards(2))
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Timeout: -1}), pool)
	const keys = 300
	call := func(i int) {
		k := fmt.Sprint("k", i)
		if res, err := c.RateLimit(t.Context(), plain.For(k), hot.For(k)); err != nil || !res.OK {
			t.Errorf("%s: %+v, %v", k, res, err)
		}
	}
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() { call(i) })
	}
	wg.Wait()
	holds := func(where string) pgx.Tx {
		tx := rig.Begin(t, pool, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), `SELECT FROM weir_balance WHERE name = 'plain' AND `+where+` FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	others, one := holds(`key <> 'k0'`), holds(`key = 'k0'`)
	for i := range keys - 1 {
		wg.Go(func() { call(1 + i) })
	}
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		call(0)
	}()
	time.Sleep(2 * time.Second) // some have been tried again
	rollback(t, one)
	began := time.Now()
	<-decided
	t.Log(time.Since(began))
	if took := time.Since(began); took > keys*50*time.Millisecond { // the mean of three tries of 10 ms, and one of 200
		t.Errorf("it was decided %v after its row was free", took)
	}
	rollback(t, others)
	wg.Wait()
}
