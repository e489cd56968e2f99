package bench

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// unit is the time in which each shard repays the mean count. What is owed is also told in units:
// by how long it takes to repay it.
const unit = lineShards * lineMean / lineRate * float64(time.Second)

// ideal is one line in place of the shards.
type ideal struct {
	mu   sync.Mutex
	owed float64 // tokens
	at   time.Time
	told []told
}

// told is what a caller of the shards was told.
type told struct {
	count float64
	wait  float64 // by one line, in units
	late  float64 // how much longer than that, in units
}

func (i *ideal) take(at, runAt time.Time, n float64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at.IsZero() {
		i.owed, i.at = -lineCapacity, at
	}
	if d := at.Sub(i.at).Seconds(); d > 0 {
		i.owed, i.at = max(-lineCapacity, i.owed-d*lineRate), at
	}
	i.owed += n
	if runAt.IsZero() {
		runAt = at
	}
	wait := max(0, i.owed) / (lineShards * lineMean)
	late := float64(runAt.Sub(i.at.Add(time.Duration(wait*unit)))) / unit
	i.told = append(i.told, told{n, wait, late})
}

// fill has the line owe so many units.
func (i *ideal) fill(
	b *testing.B, l *ratelimit.Limiter, pool *pgxpool.Pool, limit ratelimit.Limit, units float64,
) {
	b.Helper()
	want := (units+1)*lineShards*lineMean + lineCapacity
	for want > 0 {
		n := min(want, lineCapacity)
		res, err := l.Autocommit(pool).RateLimit(b.Context(), limit.Global().Count(n).OrReserve())
		if err != nil {
			b.Fatal(err)
		}
		i.take(res.At, res.RunAt, n)
		want -= n
	}
	i.told = nil
}

// report reports what callers of some lines were told, and when their shards will have repaid.
func report(b *testing.B, pool *pgxpool.Pool, lines ...*ideal) {
	b.Helper()
	var counts, waits, late, byWait []float64
	sum := 0.0
	for _, i := range lines {
		for _, t := range i.told {
			sum += t.count
			counts, waits = append(counts, t.count), append(waits, t.wait)
			late, byWait = append(late, t.late), append(byWait, t.late/max(1, t.wait))
		}
	}
	for _, x := range [][]float64{waits, late, byWait} {
		slices.Sort(x)
	}
	n := len(late)
	b.ReportMetric(late[n/2], "late-p50")
	b.ReportMetric(late[n*99/100], "late-p99")
	b.ReportMetric(byWait[n*99/100], "late-by-wait-p99")
	b.ReportMetric(waits[n/100], "debt-p1")
	b.ReportMetric(waits[n*99/100], "debt-p99")
	b.ReportMetric(sum/float64(n), "mean-count")
	b.ReportMetric(slices.Max(counts), "most-count")
	var after float64
	if err := pool.QueryRow(b.Context(), `
		SELECT max(after) FROM (
			SELECT max(at - value / rate) - avg(at - value / rate) AS after
			FROM (SELECT *, extract(epoch FROM ts)::float8 AS at FROM weir_balance
				WHERE name = 'line' AND shard > 0 AND value > '-Infinity') AS shards
			GROUP BY key
		) AS keys`).Scan(&after); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(after*float64(time.Second)/unit, "repaid-after")
}
