package model

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Limiters as they are often written, and one that is right, to see that the histories tell them
// apart.

// homemade takes in its own way; all else is the library's.
type homemade struct {
	pgxOperations
	take func(ctx context.Context, tx pgx.Tx, b balance, r ratelimit.Request) (ratelimit.Result, error)
	b    balance
}

func (h homemade) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	return h.take(ctx, h.tx, h.b, requests[0])
}

func resultOf(b balance, d ratelimit.Decision, at time.Time) ratelimit.Result {
	if d.OK {
		at = d.State.TS // of a bucket: the later of the clock and the row's
	}
	return ratelimit.Result{OK: d.OK, At: at, RunAt: d.RunAt, RetryAt: d.RetryAt, Outcomes: []ratelimit.Outcome{
		{Limit: b.limit.Name(), Key: b.key, OK: d.OK, Value: d.State.Value, RunAt: d.RunAt, RetryAt: d.RetryAt}}}
}

const (
	insertFull = `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		VALUES ($1, $2, $3, clock_timestamp(), $3, $3, 1) ON CONFLICT DO NOTHING`
	selectBalance = `SELECT value, ts FROM weir_balance WHERE name = $1 AND key = $2`
	updateBalance = `UPDATE weir_balance SET value = $3, ts = $4 WHERE name = $1 AND key = $2`
)

// readDecideWrite is the limiter of a first draft. With FOR UPDATE it is right.
func readDecideWrite(lock string) func(context.Context, pgx.Tx, balance, ratelimit.Request) (ratelimit.Result, error) {
	return func(ctx context.Context, tx pgx.Tx, b balance, r ratelimit.Request) (ratelimit.Result, error) {
		if _, err := tx.Exec(ctx, insertFull, b.limit.Name(), b.key, float64(1<<53)); err != nil {
			return ratelimit.Result{}, err
		}
		var s ratelimit.State
		if err := tx.QueryRow(ctx, selectBalance+lock, b.limit.Name(), b.key).Scan(&s.Value, &s.TS); err != nil {
			return ratelimit.Result{}, err
		}
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return ratelimit.Result{}, err
		}
		d, err := ratelimit.Decide(r, s, now)
		if err != nil {
			return ratelimit.Result{}, err
		}
		if d.OK {
			if _, err := tx.Exec(ctx, updateBalance, b.limit.Name(), b.key, d.State.Value, d.State.TS); err != nil {
				return ratelimit.Result{}, err
			}
		}
		return resultOf(b, d, now), nil
	}
}

// oneStatement takes, and reports the balance if it could not: as of the statement's snapshot,
// which is older than the row that the upsert waited for.
func oneStatement(ctx context.Context, tx pgx.Tx, b balance, r ratelimit.Request) (ratelimit.Result, error) {
	rule := rig.NumbersOf(b.rule)
	first, err := ratelimit.Decide(r.OrReserve(), ratelimit.State{}, time.Now())
	if err != nil {
		return ratelimit.Result{}, err
	}
	count := rule.Capacity - first.State.Value
	for {
		var taken bool
		var s ratelimit.State
		var now time.Time
		err := tx.QueryRow(ctx, `WITH take AS (
			INSERT INTO weir_balance AS b (name, key, value, ts, capacity, rate, period)
			VALUES ($1, $2, $3 - $4::float8, clock_timestamp(), $3::float8, $3, 1)
			ON CONFLICT (name, key, shard) DO UPDATE SET value = least($3, b.value) - $4
			WHERE least($3, b.value) - $4 >= 0 RETURNING value, ts)
			SELECT true, value, ts, ts FROM take
			UNION ALL SELECT false, value, ts, clock_timestamp() FROM weir_balance
			WHERE name = $1 AND key = $2 AND NOT EXISTS (SELECT FROM take)`,
			b.limit.Name(), b.key, rule.Capacity, count).Scan(&taken, &s.Value, &s.TS, &now)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		if err != nil {
			return ratelimit.Result{}, err
		}
		if taken {
			return resultOf(b, ratelimit.Decision{OK: true, State: s}, now), nil
		}
		return resultOf(b, ratelimit.Decision{State: s,
			RetryAt: now.Add(time.Duration((count - s.Value) / rule.Rate * float64(rule.Period)))},
			now), nil
	}
}

// remembered denials are believed without a look at the database.
type believer struct {
	pgxOperations
	memory *sync.Map
}

func (b believer) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	if res, ok := b.memory.Load(requests[0]); ok {
		return res.(ratelimit.Result), nil
	}
	res, err := b.pgxOperations.RateLimit(ctx, requests...)
	if err == nil && !res.OK {
		b.memory.Store(requests[0], res)
	}
	return res, err
}

func TestHistoriesTellARightLimiterFromAWrongOne(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its wrong limiters are wrong on one server")
	rule := ratelimit.TokenBucket{Rate: 10, Period: rig.Century}
	home := func(take func(context.Context, pgx.Tx, balance, ratelimit.Request) (ratelimit.Result,
		error)) func(pgxOperations, balance) operations {
		return func(o pgxOperations, b balance) operations { return homemade{o, take, b} }
	}
	memory := &sync.Map{}
	for _, v := range []struct {
		name  string
		right bool
		alone bool // right as long as there is one caller
		make  func(pgxOperations, balance) operations
	}{
		{"ReadLockedThenWritten", true, true, home(readDecideWrite(` FOR UPDATE`))},
		{"ReadThenWritten", false, true, home(readDecideWrite(``))},
		{"DeniedByAnOlderSnapshot", false, true, home(oneStatement)},
		{"DeniedFromMemory", false, false, func(o pgxOperations, _ balance) operations { return believer{o, memory} }},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 9 })
			l := rig.Limiter(t, ratelimit.Config{})
			record := func(name string, clients int) *history {
				b := balance{rule, ratelimit.MustDefine(name, rule), "k"}
				run := func(ctx context.Context, fn func(operations) error) error {
					return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
						return fn(v.make(pgxOperations{l.In(tx), l, tx}, b))
					})
				}
				m := mix{balances: balances{b}, clients: clients, calls: 40, single: true,
					noGivings: true, now: true, counts: []float64{1, 2, 3}}
				return m.record(t, roads[0], run)
			}
			if v.alone {
				record("alone", 1).mustBeExplained(t, false)
			}
			if v.right {
				record("together", 8).mustBeExplained(t, false)
				return
			}
			const tries = 100 // its callers may be scheduled so that it makes no mistake, but not so often
			for try := range tries {
				if verdict := record(fmt.Sprint("together", try), 8).judge(false); verdict == porcupine.Illegal {
					t.Logf("rejected at try %d", try+1)
					return
				}
			}
			t.Errorf("%d histories of a wrong limiter were accepted", tries)
		})
	}
}

// Two transactions that each look at what the other takes see the world before either: no order
// explains that. REPEATABLE READ, which allows it, is found out; SERIALIZABLE fails one of them.
func TestHistoriesShowThatRepeatableReadIsNotSerializable(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 10, Period: rig.Century}
	limit := ratelimit.MustDefine("skew", rule)
	among := balances{{rule, limit, "a"}, {rule, limit, "b"}}
	for _, level := range rig.Levels[1:] {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			h := newHistory()
			txs := []pgx.Tx{rig.Begin(t, pool, level), rig.Begin(t, pool, level)}
			parts := make([][]part, 2)
			call := h.now()
			for i, tx := range txs {
				other := among.request(1 - i)
				res, err := l.CheckRateLimit(t.Context(), tx, other)
				if err != nil {
					t.Fatal(err)
				}
				parts[i] = append(parts[i], answered(checking, among, 1-i, other, res, 0))
			}
			failed := 0
			for i, tx := range txs {
				res, err := l.RateLimit(t.Context(), tx, among.request(i))
				if err == nil {
					parts[i] = append(parts[i], answered(taking, among, i, among.request(i), res, 0))
					err = tx.Commit(t.Context())
				}
				switch {
				case rig.SQLState(err) == "40001":
					failed++
				case err != nil:
					t.Fatal(err)
				default:
					h.add(i, call, parts[i]...)
				}
			}
			want, fails := porcupine.Illegal, 0
			if level == pgx.Serializable {
				want, fails = porcupine.Ok, 1
			}
			if verdict := h.judge(true); verdict != want || failed != fails {
				t.Errorf("the history is %v and %d failed, want %v and %d", verdict, failed, want, fails)
			}
		})
	}
}

// A check above READ COMMITTED is as old as its transaction's first statement: by the time of the
// call alone it is wrong.
func TestChecksAreLinearizableOverTheWholeTransaction(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a snapshot is of one node there")
	rule := ratelimit.TokenBucket{Rate: 10, Period: rig.Century}
	among := balances{{rule, ratelimit.MustDefine("old", rule), "k"}}
	r := among.request(0)
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			whole, alone := newHistory(), newHistory()

			began, beganAlone := whole.now(), alone.now()
			tx := rig.Begin(t, pool, level)
			if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
				t.Fatal(err)
			}
			res, err := l.Autocommit(pool).RateLimit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			p := answered(taking, among, 0, r, res, 0)
			whole.add(0, began, p)
			alone.add(0, beganAlone, p)

			call := alone.now()
			if res, err = l.CheckRateLimit(t.Context(), tx, r); err != nil {
				t.Fatal(err)
			}
			rig.Commit(t, tx)
			p = answered(checking, among, 0, r, res, 0)
			whole.add(1, began, p)
			alone.add(1, call, p)

			want := porcupine.Illegal
			if level == pgx.ReadCommitted {
				want = porcupine.Ok
			}
			if v := whole.judge(false); v != porcupine.Ok {
				t.Errorf("over the whole transaction the history is %v", v)
			}
			if v := alone.judge(false); v != want {
				t.Errorf("by the time of the call the history is %v, want %v", v, want)
			}
		})
	}
}
