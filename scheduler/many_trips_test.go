package scheduler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// tripCounter counts the round trips of a pool's connections.
type tripCounter struct{ trips atomic.Int64 }

func (c *tripCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.trips.Add(1)
	return ctx
}

func (c *tripCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.trips.Add(1)
	return ctx
}

func (*tripCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*tripCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*tripCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// However many jobs there are, and over however many keys, limits and kinds, the round trips are
// the same; only each key of a shadow adds one. That holds if all are granted, if they are denied, if all are duplicates, and if River refuses
// one.
func TestManyJobsTakeAsManyRoundTripsAsOne(t *testing.T) {
	t.Parallel()
	counter := &tripCounter{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.Tracer = 1, counter })
	f := setUpOn(t, pool, scheduler.Config{})
	bucket := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	window := ratelimit.MustDefine("tripsWindow", ratelimit.FixedWindow{Rate: 2, Period: time.Hour})
	shared := ratelimit.MustDefine("shared", ratelimit.TokenBucket{Rate: 1, Period: time.Hour,
		Capacity: ratelimit.Tokens(64)}, ratelimit.Shards(4))
	shadow := ratelimit.MustDefine("shadow", ratelimit.TokenBucket{Rate: 2, Period: time.Hour}, ratelimit.Shadow())
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	params := func(n int, opts *river.InsertOpts, more ...ratelimit.Request) []scheduler.InsertManyParams {
		all := make([]scheduler.InsertManyParams, n)
		for i := range all {
			key := fmt.Sprint(i % 150)
			all[i] = scheduler.InsertManyParams{Args: sendArgs{i}, InsertOpts: opts,
				Requests: append([]ratelimit.Request{
					bucket.For(key).OrReserve(), bucket.For("all").OrReserve(),
					window.For(key).OrReserve(), shared.For("k").OrReserve(), shadow.For("k"),
				}, more...)}
			if i%2 == 1 && opts == nil {
				all[i].Args = laterArgs{}
			}
		}
		return all
	}
	trips := func(n int, opts *river.InsertOpts, granted, fails bool, more ...ratelimit.Request) int64 {
		t.Helper()
		all := params(n, opts, more...)
		if fails {
			all[n-1].Args = unknownArgs{}
		}
		before := counter.trips.Load()
		in, err := f.jobs.InsertMany(t.Context(), pool, all)
		if (err != nil) != fails || err == nil && in.OK != granted {
			t.Fatalf("%d jobs: %v, granted %v", n, err, in.OK)
		}
		return counter.trips.Load() - before
	}
	drained := ratelimit.MustDefine("drained", ratelimit.TokenBucket{Rate: 400, Period: never})
	f.insertMany(t, params(300, nil)...)
	f.insertMany(t, job(0, drained.For("k").Count(400)))
	f.insertMany(t, params(300, unique)...)
	for name, c := range map[string]struct {
		opts           *river.InsertOpts
		granted, fails bool
		more           []ratelimit.Request
		most           int64
	}{
		"granted":    {granted: true, most: 8},
		"denied":     {more: []ratelimit.Request{drained.For("k")}, most: 8},
		"duplicates": {opts: unique, granted: true, most: 12},
		"refused":    {fails: true, most: 10},
	} {
		for range 2 { // the first of each looks for what the books do not know
			trips(3, c.opts, c.granted, c.fails, c.more...)
		}
		few, many := trips(3, c.opts, c.granted, c.fails, c.more...), trips(300, c.opts, c.granted, c.fails, c.more...)
		t.Logf("%s: %d round trips for 3 jobs, %d for 300", name, few, many)
		if few > c.most || many > c.most || many > few+2 {
			t.Errorf("%s: %d round trips for 3 jobs and %d for 300, want about as many, and at most %d",
				name, few, many, c.most)
		}
	}
}
