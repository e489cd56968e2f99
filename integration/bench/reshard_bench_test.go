package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// span is when something began and ended.
type span struct{ began, ended time.Time }

func (s span) length() time.Duration { return s.ended.Sub(s.began) }

func (s span) overlaps(other span) bool {
	return s.began.Before(other.ended) && other.began.Before(s.ended)
}

// BenchmarkReshard is one limit from which 16 callers take in SERIALIZABLE transactions that work
// for 2 ms after that, while an operator gives it 16 shards and 8 in turn. grow-p99-ms is of the
// transactions that are under way while it gets 16, shrink-p99-ms while it gets 8, and base-p99-ms
// of all others, each with all of its runs. change-p50-ms is of the changes.
func BenchmarkReshard(b *testing.B) {
	const changes, apart = 100, 50 * time.Millisecond
	c := newCrowd(b, hotCallers)
	l := rig.Limiter(b, ratelimit.Config{})
	limit := ratelimit.MustDefine("resharded", ratelimit.TokenBucket{Rate: 1e9, Period: rig.Never},
		ratelimit.Shards(8))
	var request ratelimit.Request
	ours := c.sleepAfter(l, pgx.Serializable, "0.002", "",
		func(int) ratelimit.Request { return request })
	var calls, grows, shrinks []span
	run := func() {
		var mu sync.Mutex
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		for worker := range hotCallers {
			wg.Go(func() {
				var mine []span
				for ctx.Err() == nil {
					began := time.Now()
					if err := ours.do(b.Context(), worker); err != nil {
						b.Error(err)
						return
					}
					mine = append(mine, span{began, time.Now()})
				}
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, mine...)
			})
		}
		for i := range changes {
			time.Sleep(apart)
			to, n := &grows, 16
			if i%2 == 1 {
				to, n = &shrinks, 8
			}
			began := time.Now()
			if err := l.InTxOptions(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
				func(ctx context.Context, tx pgx.Tx) error {
					return l.Reshard(ctx, tx, n, request)
				}); err != nil {
				b.Error(err)
				return
			}
			*to = append(*to, span{began, time.Now()})
		}
	}
	for n := 0; b.Loop(); n++ {
		request = limit.For(fmt.Sprint(n)) // a key can change its shards two thousand times
		run()
	}
	if b.Failed() {
		return
	}
	times := map[string][]time.Duration{}
	for _, call := range calls {
		kind := "base"
		switch {
		case slices.ContainsFunc(grows, call.overlaps):
			kind = "grow"
		case slices.ContainsFunc(shrinks, call.overlaps):
			kind = "shrink"
		}
		times[kind] = append(times[kind], call.length())
	}
	report := func(of []time.Duration, share float64, unit string) {
		slices.Sort(of)
		at := of[int(share*float64(len(of)-1))]
		b.ReportMetric(float64(at)/float64(time.Millisecond), unit)
	}
	for kind, of := range times {
		report(of, 0.99, kind+"-p99-ms")
	}
	var took []time.Duration
	for _, change := range slices.Concat(grows, shrinks) {
		took = append(took, change.length())
	}
	report(took, 0.5, "change-p50-ms")
	b.ReportMetric(ours.abortsPerCommit(), "aborts/commit")
}
