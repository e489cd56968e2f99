package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// FuzzChanges holds the statements that take, give back, charge, pause, resume and reset to package
// algebra: after each operation of a history the row in the database is the one that was computed,
// to the last bit, whatever rules have written it before.
func FuzzChanges(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed%4 == 0)
	}
	pool, clock := pgtest.Pool(f), rig.Clock()
	start := clock.Now()
	ways := []rig.Verbs{
		rig.Limiter(f, ratelimit.Config{Clock: clock.Now}).Autocommit(pool),
		rig.Limiter(f, ratelimit.Config{Clock: clock.Now, Portable: true}).Autocommit(pool),
	}
	limit := ratelimit.MustDefine("changes", ratelimit.TokenBucket{Rate: 1, Period: time.Second})
	histories := 0
	f.Fuzz(func(t *testing.T, seed uint64, portable bool) {
		random := rand.New(rand.NewPCG(seed, 1))
		v := ways[0]
		if portable {
			v = ways[1]
		}
		histories++
		ask := limit.For(fmt.Sprint("k", histories))
		clock.Set(start.Add(time.Duration(random.IntN(1e9)) * time.Microsecond))
		rules, computed := drawRules(random)
		var row algebra.Row
		type take struct {
			res   ratelimit.Result
			rule  *algebra.Rule
			left  algebra.Balance
			count float64
		}
		var takes []take
		for i := range 40 {
			clock.Add(time.Duration(random.IntN(3e6)-1e5) * time.Microsecond) // now and then it goes back
			now, k := clock.Now().UnixMicro(), random.IntN(len(rules))
			rule, request := computed[k], ask.Rule(rules[k])
			var what string
			var err error
			switch verb := random.IntN(10); {
			case verb < 4 || len(takes) == 0:
				n := min(float64(random.IntN(40))/8*(rule.Capacity/5), rule.Capacity)
				request = request.Count(n)
				var ahead algebra.Ahead
				switch random.IntN(6) {
				case 0:
				case 1:
					ahead.Leave = float64(random.IntN(9)) / 8 * (rule.Capacity - n)
					request = request.Leave(ahead.Leave)
				case 2:
					ahead.Reserve, ahead.Bounded, ahead.Within = true, true, random.Int64N(3*rule.Period)
					request = request.Within(rig.Micros(ahead.Within))
				default:
					ahead.Reserve = true
					request = request.OrReserve()
				}
				what = fmt.Sprintf("take %v, %+v, by rule %d", n, ahead, k)
				asked := algebra.Ask{Rule: *rule, Count: n, Ahead: ahead}
				verdict := asked.Decide(row.Balance, now)
				var res ratelimit.Result
				res, err = v.RateLimit(t.Context(), request)
				if errors.Is(err, ratelimit.ErrInvalid) && ahead.Bounded {
					continue // it can never be granted within so short a time
				}
				if err == nil && res.OK != verdict.OK {
					t.Fatalf("%d: %s: %v, want %+v", i, what, res, verdict)
				}
				if verdict.OK {
					row = algebra.Row{Balance: verdict.After, By: *rule}
					takes = append(takes, take{res, rule, row.Balance, n})
				}
			case verb < 6:
				j := random.IntN(len(takes))
				taken := takes[j]
				takes = append(takes[:j:j], takes[j+1:]...)
				receipt := algebra.Receipt{Count: taken.count, Left: taken.left.Left()}
				if verb == 4 {
					what = fmt.Sprintf("give back %+v", receipt)
					row = taken.rule.Give(row, receipt, 0, taken.left.Value >= 0, now)
					err = v.GiveBack(t.Context(), taken.res)
					break
				}
				used := taken.count * float64(random.IntN(16)) / 8
				what = fmt.Sprintf("settle %+v with %v", receipt, used)
				if used <= taken.count {
					row = taken.rule.Give(row, receipt, used, true, now)
				} else {
					row = taken.rule.Charge(row, used-taken.count, now)
				}
				_, err = v.Settle(t.Context(), taken.res.Reservation(), ask.Count(used))
			case verb == 6 || verb == 9:
				d := int64(1 + random.IntN(5e6))
				what = fmt.Sprintf("pause for %d us, by rule %d", d, k)
				row = rule.Pause(row, d, now)
				err = v.Pause(t.Context(), rig.Micros(d), request)
			case verb == 7:
				what = fmt.Sprintf("resume, by rule %d", k)
				row = rule.Resume(row, now)
				err = v.Resume(t.Context(), request)
			case verb == 8 && random.IntN(3) == 0:
				what = fmt.Sprintf("reset, by rule %d", k)
				row = rule.Reset(row, now)
				err = v.ResetRateLimit(t.Context(), request)
			default:
				continue
			}
			if err != nil {
				t.Fatalf("%d: %s: %v", i, what, err)
			}
			got := readRow(t, pool, ask.Key())
			want := row
			want.By.Debt = 0 // no column
			if got != want {
				t.Fatalf("%d: %s:\n got %+v\nwant %+v", i, what, got, want)
			}
		}
	})
}

// drawRules draws two rules that write the same row.
func drawRules(random *rand.Rand) (rules []ratelimit.Rule, computed []*algebra.Rule) {
	for range 2 {
		rate := []float64{1, 3, 7, 10, 0.1, 1.0 / 3}[random.IntN(6)]
		capacity, reserved := rate*float64(1+random.IntN(5)), rate*float64(random.IntN(20))
		period := time.Duration(1+random.IntN(2e6)) * time.Microsecond
		a := &algebra.Rule{Rate: rate, Capacity: capacity, Debt: reserved, Period: period.Microseconds()}
		if random.IntN(2) == 0 {
			rules = append(rules, ratelimit.TokenBucket{Rate: rate, Period: period,
				Capacity: &capacity, MaxReserved: &reserved})
		} else {
			start := time.UnixMicro(1_600_000_000_000_000 + random.Int64N(1e12))
			a.Windowed = true
			a.SetOrigin(start.UnixMicro())
			rules = append(rules, ratelimit.FixedWindow{Rate: rate, Period: period,
				Capacity: &capacity, MaxReserved: &reserved, Start: start})
		}
		computed = append(computed, a)
	}
	return rules, computed
}

// readRow reads a row of the limit as it is stored.
func readRow(t *testing.T, pool *pgxpool.Pool, key string) algebra.Row {
	t.Helper()
	var r algebra.Row
	var ts, origin, paused pgtype.Timestamptz
	err := pool.QueryRow(t.Context(),
		`SELECT value, ts, capacity, rate, period, origin, paused_until, coalesce(delay, 0), coalesce(moved, 0)
		FROM weir_balance WHERE name = 'changes' AND key = $1`, key).
		Scan(&r.Value, &ts, &r.By.Capacity, &r.By.Rate, &r.By.Period, &origin, &paused, &r.Delay, &r.Moved)
	if err != nil {
		t.Fatal(err)
	}
	r.Exists, r.TS, r.PausedUntil = true, ts.Time.UnixMicro(), algebra.Open
	if paused.Valid {
		r.PausedUntil = paused.Time.UnixMicro()
	}
	if r.By.Windowed = origin.Valid; origin.Valid {
		r.By.Origin = origin.Time.UnixMicro()
	}
	return r
}
