package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// afterTrip does something once, after the first batch of a transaction.
type afterTrip struct {
	pgx.Tx
	once *sync.Once
	do   func()
}

func (a afterTrip) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return afterTripResults{a.Tx.SendBatch(ctx, b), a}
}

type afterTripResults struct {
	pgx.BatchResults
	tx afterTrip
}

func (r afterTripResults) Close() error {
	err := r.BatchResults.Close()
	r.tx.once.Do(r.tx.do)
	return err
}

// A transaction that has locked the row of a limit without shards does not go back for a shard of a
// limit that comes before it: another transaction may hold the shard and wait for the row.
func TestACallThatHoldsARowWaitsForNoShardBeforeIt(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	rule := ratelimit.TokenBucket{Rate: 40, Period: rig.Century}
	const first = `(SELECT min(shard) FROM weir_balance WHERE name LIKE 'a%' AND shard > 0)`
	for name, c := range map[string]struct {
		knows  bool   // the limiter knows that the limit should have shards
		held   string // the shards that the other transaction holds
		before string // what the limiter has seen of them
		learns bool   // the limiter learns of the shards after the first trip
	}{
		"the shard with the tokens was emptied": {knows: true, held: `shard > ` + first,
			before: `CASE WHEN shard = ` + first + ` THEN 10 ELSE 0 END`},
		"the limit has shards now":              {held: `shard > 0`},
		"and others of the process learn of it": {held: `shard > 0`, learns: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t, rig.Most(6)), rig.Limiter(t, ratelimit.Config{})
			auto := l.Autocommit(pool)
			stale := ratelimit.MustDefine("a", rule).For("k")
			row := ratelimit.MustDefine("b", rule).For("k")
			sharded := ratelimit.MustDefine("a", rule, ratelimit.Shards(4)).For("k")
			request := stale
			if c.knows {
				request = sharded
			}
			for _, r := range []ratelimit.Request{sharded, row} {
				rig.Take(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), r)
			}
			if c.before != "" {
				rig.Exec(t, pool, `UPDATE weir_balance SET value = `+c.before+` WHERE name LIKE 'a%' AND shard > 0`)
				if _, err := auto.CheckRateLimit(t.Context(), sharded); err != nil {
					t.Fatal(err)
				}
			}
			rig.Exec(t, pool, `UPDATE weir_balance SET value = CASE WHEN `+c.held+` THEN 10 ELSE 0 END WHERE name LIKE 'a%' AND shard > 0`)

			other := rig.Begin(t, pool, pgx.ReadCommitted)
			lock := func(of string) {
				t.Helper()
				if _, err := other.Exec(t.Context(), `SELECT FROM weir_balance WHERE `+of+` FOR UPDATE`); err != nil {
					t.Errorf("the other transaction: %v", err)
					_ = other.Rollback(t.Context())
				}
			}
			lock(`name LIKE 'a%' AND ` + c.held)
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			pid := tx.Conn().PgConn().PID()
			learn := func() {
				if !c.learns {
					return
				}
				if _, err := auto.CheckRateLimit(t.Context(), stale); err != nil {
					t.Error(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), hung)
			defer cancel()
			ended := make(chan answer, 1)
			go func() {
				res, err := l.RateLimit(ctx, afterTrip{tx, new(sync.Once), learn}, request, row)
				ended <- answer{res, err}
				_ = tx.Commit(context.Background())
			}()
			until(t, func() (goesOn bool) {
				if len(ended) > 0 {
					return true
				}
				if err := pool.QueryRow(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) > 0`, pid).Scan(&goesOn); err != nil {
					t.Fatal(err)
				}
				return goesOn
			})
			lock(`name LIKE 'b%'`)
			got := <-ended
			if got.err != nil {
				t.Fatal(got.err)
			}
			of := got.res.Outcomes[0]
			if ahead := of.RetryAt.Sub(got.res.At); of.OK || ahead > 100*time.Millisecond {
				t.Errorf("granted: %v, retry after %v; want a denial for at most 100 ms", of.OK, ahead)
			}
			rig.Commit(t, other)
			wantValue(t, l, pool, row, 39)
		})
	}
}

// InTx takes back what a call has sent with BEGIN if a limit turns out to have shards, so the call
// may lock all of them.
func TestACallThatLearnsOfShardsRunsOnce(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 40, Period: rig.Century}
	sharded := ratelimit.MustDefine("a", rule, ratelimit.Shards(4)).For("k")
	stale := ratelimit.MustDefine("a", rule).For("k")
	row := ratelimit.MustDefine("b", rule).For("k")
	for _, level := range rig.Levels {
		for _, others := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/others of the process learn of them first: %v", level, others), func(t *testing.T) {
				t.Parallel()
				var learn afterBatch
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &learn })
				l := rig.Limiter(t, ratelimit.Config{})
				rig.Take(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), sharded)
				if others {
					pgtest.OneServer(t, "what reads the shards is no batch on one server")
					learn.do = func() {
						if _, err := l.Autocommit(pool).CheckRateLimit(t.Context(), sharded); err != nil {
							t.Error(err)
						}
					}
				}
				runs := 0
				err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
					runs++
					return l.Consume(ctx, tx, stale, row)
				})
				if err != nil || runs != 1 {
					t.Errorf("%v in %d runs", err, runs)
				}
				wantValue(t, l, pool, sharded, 38)
				wantValue(t, l, pool, row, 39)
			})
		}
	}
}
