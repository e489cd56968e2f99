package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/shardload"
	"github.com/weir-go/weir/ratelimit"
)

const (
	slice = 150 * time.Millisecond
	users = 10_000
	never = 10_000 * time.Hour // a period in which nothing comes
)

var levels = []pgx.TxIsoLevel{pgx.Serializable, pgx.ReadCommitted}

// perUser is the ideal: nobody meets anybody.
var perUser = ratelimit.MustDefine("perUser", ratelimit.TokenBucket{Rate: 1e9, Period: never})

// setting is what is measured: callers who take from a limit of so many shards, or of a key for
// each user if that is 0.
type setting struct {
	callers, shards int
	level           pgx.TxIsoLevel
}

// done is what was done in a setting.
type done struct {
	rates                 []float64 // commits a second, by rounds
	commits, runs, looked float64   // in all rounds
}

func (d *done) abortsPerCommit() float64 { return (d.runs - d.commits) / d.commits }

type throughput struct {
	done    map[setting]*done
	control map[setting][]float64 // of the base, by itself
}

// measureThroughput measures all settings in slices of time, over and over, as only what was
// measured at the same time can be compared on a machine that does other things as well. The
// settings of as many callers at one level follow each other, with that of a key for each user
// first and last.
func measureThroughput(
	ctx context.Context, pool *pgxpool.Pool, conns []*pgxpool.Conn, looks *shardload.Looks,
	rounds int,
) (*throughput, error) {
	if _, err := pool.Exec(ctx,
		`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'perUser', 'user-' || i, 1e9, clock_timestamp(), 1, 1, 1e6 FROM generate_series(0, $1::integer - 1) i`,
		users); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYZE weir_balance`); err != nil {
		return nil, err
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return nil, err
	}
	t := &throughput{map[setting]*done{}, map[setting][]float64{}}
	for round := range rounds + 1 { // the first warms up
		for _, callers := range callerNumbers {
			for _, level := range levels {
				order := slices.Clone(shardNumbers)
				rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
				order = append(append([]int{0}, order...), 0)
				var base []float64
				for _, shards := range order {
					s := setting{callers, shards, level}
					d := t.done[s]
					if d == nil {
						d = &done{}
						t.done[s] = d
					}
					rate, err := s.slice(ctx, limiter, conns, looks, d)
					if err != nil {
						return nil, fmt.Errorf("%+v: %w", s, err)
					}
					if shards == 0 {
						base = append(base, rate)
					} else {
						d.rates = append(d.rates, rate)
					}
				}
				if round > 0 {
					s := setting{callers, 0, level}
					t.done[s].rates = append(t.done[s].rates, (base[0]+base[1])/2)
					t.control[s] = append(t.control[s], base[0]/base[1])
				}
			}
		}
		if round == 0 {
			for _, d := range t.done {
				*d = done{}
			}
		}
	}
	return t, nil
}

// slice lets the callers work for one slice, and returns the commits a second.
func (s setting) slice(
	ctx context.Context, limiter *ratelimit.Limiter, conns []*pgxpool.Conn, looks *shardload.Looks,
	d *done,
) (float64, error) {
	limit := perUser
	if s.shards > 0 {
		var err error
		if limit, err = ratelimit.Define(fmt.Sprintf("hot%d", s.shards), ratelimit.TokenBucket{
			Rate: 1e9, Period: never,
		}, ratelimit.Shards(s.shards)); err != nil {
			return 0, err
		}
	}
	looked := looks.Count()
	var wg sync.WaitGroup
	var inTime, commits, runs, errs = make([]int, s.callers), make([]int, s.callers),
		make([]int, s.callers), make([]error, s.callers)
	end := time.Now().Add(slice)
	for i := range s.callers {
		wg.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				key := fmt.Sprintf("%d callers, %s", s.callers, s.level)
				if s.shards == 0 {
					key = fmt.Sprintf("user-%d", rand.IntN(users))
				}
				errs[i] = limiter.InTxOptions(ctx, conns[i], pgx.TxOptions{IsoLevel: s.level},
					func(ctx context.Context, tx pgx.Tx) error {
						runs[i]++
						res, err := limiter.RateLimit(ctx, tx, limit.For(key))
						if err != nil {
							return err
						}
						if err := res.Err(); err != nil {
							return err
						}
						_, err = tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
						return err
					})
				commits[i]++
				if time.Now().Before(end) {
					inTime[i]++
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	ended := 0
	for i := range s.callers {
		ended += inTime[i]
		d.commits += float64(commits[i])
		d.runs += float64(runs[i])
	}
	d.looked += float64(looks.Count() - looked)
	return float64(ended) / slice.Seconds(), nil
}

// relative is the throughput relative to one key per user: the median of the rounds.
func (t *throughput) relative(s setting) float64 {
	base := t.done[setting{s.callers, 0, s.level}].rates
	var ratios []float64
	for i, r := range t.done[s].rates {
		ratios = append(ratios, r/base[i])
	}
	return median(ratios)
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}

func (t *throughput) table() string {
	var b strings.Builder
	b.WriteString(
		"| callers | shards | SERIALIZABLE: throughput | aborts per commit | looks per take | READ COMMITTED: throughput | looks per take |\n",
	)
	b.WriteString("|---|---|---|---|---|---|---|\n")
	for _, callers := range callerNumbers {
		ser, rc := setting{callers, 0, pgx.Serializable}, setting{callers, 0, pgx.ReadCommitted}
		fmt.Fprintf(&b, "| %d | a key for each user | 1 (%.0f/s) | %.3f | | 1 (%.0f/s) | |\n",
			callers,
			median(t.done[ser].rates), t.done[ser].abortsPerCommit(), median(t.done[rc].rates))
		for _, shards := range shardNumbers {
			ser.shards, rc.shards = shards, shards
			s, r := t.done[ser], t.done[rc]
			fmt.Fprintf(&b, "| %d | %d | %.2f | %.3f | %.3f | %.2f | %.3f |\n", callers, shards,
				t.relative(ser), s.abortsPerCommit(), s.looked/s.runs, t.relative(rc),
				r.looked/r.runs)
		}
	}
	least, most, aborts := 2.0, 0.0, 0.0
	for _, c := range t.control {
		least, most = min(least, median(c)), max(most, median(c))
	}
	for s, d := range t.done {
		if s.level == pgx.ReadCommitted {
			aborts += d.runs - d.commits
		}
	}
	fmt.Fprintf(&b,
		"\nOne key per user, measured against itself, gave %.2f to %.2f. At READ COMMITTED %s.\n",
		least, most, number(aborts, "transaction was", "transactions were", "run again"))
	return b.String()
}

func number(n float64, one, many, what string) string {
	switch n {
	case 0:
		return "no " + one + " " + what
	case 1:
		return "one " + one + " " + what
	}
	return fmt.Sprintf("%.0f %s %s", n, many, what)
}
