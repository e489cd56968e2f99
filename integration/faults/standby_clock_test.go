package faults

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// If the clock of a standby is ahead, it grants what flows in during that time besides, which is no
// more than a limit's capacity. If the clock is behind, nothing flows in until it has caught up.
func TestAStandbyWhoseClockDiffersMintsNoMoreThanThat(t *testing.T) {
	const rate, full = 20, 10
	rule := ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(full)}
	// at most in so long
	bucket := func(d time.Duration) float64 { return full + rate*d.Seconds() }
	window := func(d time.Duration) float64 { return full * (math.Floor(d.Seconds()) + 2) }
	limits := []struct {
		ratelimit.Limit
		most func(d time.Duration) float64
	}{
		{ratelimit.MustDefine("bucket of a pair", rule), bucket},
		{ratelimit.MustDefine("shards of a pair", rule, ratelimit.Shards(2)), bucket},
		{ratelimit.MustDefine("window of a pair",
			ratelimit.FixedWindow{Rate: full, Period: time.Second, Start: time.Unix(0, 0)}), window},
	}
	for name, c := range map[string]struct {
		by    string
		ahead time.Duration
	}{
		"Ahead":  {"+3s", 3 * time.Second},
		"Behind": {"-3s", -3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours(t)
			f := setUpPair(t, true, pgtest.Faketime(t, c.by))
			take := f.app.limiter.Autocommit(f.pool)
			got := make([]float64, len(limits))
			began := time.Now()
			round := func() {
				for i, l := range limits {
					ctx, cancel := context.WithTimeout(t.Context(), hung)
					res, err := take.RateLimit(ctx, l.Global())
					cancel()
					if class := classify(err); err != nil && class != away && class != unknown || time.Since(began) > hung {
						t.Fatalf("after %v: %v", time.Since(began), err)
					}
					if res.OK {
						got[i]++
					}
				}
			}
			clock := func() (at time.Time) {
				f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
					return conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at)
				})
				return at
			}

			for slices.Min(got) < full {
				round()
			}
			if err := f.server.Kill(); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			f.mustRefuse(t)
			promoted := time.Now()
			f.takeOver(t)
			asked := time.Now().Add(c.ahead)
			if at := clock(); at.Before(asked.Add(-time.Second)) || at.After(time.Now().Add(c.ahead+time.Second)) {
				t.Fatalf("the clock of the standby is at %v, asked at %v", at, asked)
			}
			before := slices.Clone(got)
			for end := time.Now().Add(time.Second); time.Now().Before(end) || got[0] == before[0] || got[1] == before[1]; {
				round()
			}
			ended := time.Now()
			first, second := killed.Sub(began), ended.Sub(promoted)
			for i, l := range limits {
				if most := l.most(first); before[i] > most {
					t.Errorf("%s: the primary granted %v in %v, want at most %v", l.Name(), before[i], first, most)
				}
				most, after := l.most(second), got[i]-before[i]
				if c.ahead < 0 { // the clock that counts has stood still
					most = l.most(max(first, ended.Add(c.ahead).Sub(began))) - before[i]
				}
				if after > most {
					t.Errorf("%s: the standby granted %v in %v, want at most %v", l.Name(), after, second, most)
				}
			}
			t.Logf("%v granted in %v, and then %v in %v", before, first, got, second)
		})
	}
}
