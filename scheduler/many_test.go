package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// about compares times by the clock of the database, which goes on between statements.
func about(d, want time.Duration) bool { return d > want-time.Minute && d <= want }

// job is a job for InsertMany.
func job(n int, requests ...ratelimit.Request) scheduler.InsertManyParams {
	return scheduler.InsertManyParams{Args: sendArgs{n}, Requests: requests}
}

func (f *fixture) insertMany(t testing.TB, params ...scheduler.InsertManyParams) *scheduler.InsertedMany {
	t.Helper()
	in, err := f.jobs.InsertMany(t.Context(), f.pool, params)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// balances are all rows of the table, without what differs by rounding.
func balances(ctx context.Context, tx pgx.Tx) (rows []string, values []float64, err error) {
	found, err := tx.Query(ctx,
		`SELECT name, key, shard, value, coalesce(moved, 0), ts, paused_until, delay, capacity, rate, period, origin
		FROM weir_balance ORDER BY name, key, shard`)
	if err != nil {
		return nil, nil, err
	}
	for found.Next() {
		row, err := found.Values()
		if err != nil {
			return nil, nil, err
		}
		values = append(values, row[3].(float64), row[4].(float64))
		rows = append(rows, fmt.Sprint(append(row[:3:3], row[5:]...)))
	}
	return rows, values, found.Err()
}

// Every job has what it would have had if it had been inserted after those before it, and alone:
// the same place, to the microsecond, the same reservation and the same balances in the end. What
// all of them took is what they can give back.
func TestManyJobsHaveThePlacesOfJobsInsertedOneByOne(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	f := setUp(t, scheduler.Config{})
	var now time.Time
	var err error
	if f.limiter, err = ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: func() time.Time {
		return now
	}}); err != nil {
		t.Fatal(err)
	}
	f.jobs = scheduler.New(f.limiter, scheduler.Config{Jitter: -1}).Jobs(f.client)
	const second = 1 << 20 * time.Microsecond // in which float64 counts tokens without rounding
	bucket := ratelimit.TokenBucket{Rate: 3, Period: second, Capacity: ratelimit.Tokens(5)}
	bounded := ratelimit.TokenBucket{Rate: 1, Period: second, Capacity: ratelimit.Tokens(4),
		MaxReserved: ratelimit.Tokens(6)}
	asks := []func(key string) ratelimit.Request{
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("manyBucket", bucket).For(key).OrReserve()
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("manyBounded", bounded).For(key).OrReserve()
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("manyWindow",
				ratelimit.FixedWindow{Rate: 4, Period: 10 * time.Second}).For(key).OrReserve()
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("manyNow", ratelimit.TokenBucket{Rate: 30, Period: second}).For(key)
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("leave", ratelimit.TokenBucket{Rate: 30, Period: second}).For(key).Leave(5)
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("within", bucket).For(key).Within(4 * time.Second)
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("manyCredit", bounded).For(key).OnCredit().OrReserve()
		},
		func(key string) ratelimit.Request { return ratelimit.MustDefine("alone", bounded).For(key).OnCredit() },
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("plan", bounded).For(key).OrReserve().Rule(bucket)
		},
	}
	values := func(t *rapid.T, ctx context.Context, tx pgx.Tx) (all []float64) {
		t.Helper()
		for _, ask := range asks {
			for _, key := range []string{"x", "y"} {
				s, err := f.limiter.Value(ctx, tx, ask(key))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, s.Value)
			}
		}
		return all
	}
	errUndo := errors.New("undo")
	granted, denied := 0, 0
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom([]int{len(asks), 1, 2, 3}).Draw(t, "kinds") // with few, their jobs meet
		from := rapid.IntRange(0, len(asks)-1).Draw(t, "from")
		request := func(label string) ratelimit.Request {
			ask := asks[(from+rapid.IntRange(0, kinds-1).Draw(t, label))%len(asks)]
			key := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "key")
			return ask(key).Count(rapid.SampledFrom([]float64{1, 0, 0.25, 0.5, 2, 2.75, 4}).Draw(t, "count"))
		}
		before := rapid.SliceOfN(rapid.Custom(func(*rapid.T) ratelimit.Request {
			return request("before")
		}), 0, 4).Draw(t, "earlier")
		elapsed := time.Duration(rapid.IntRange(0, 2_000_000).Draw(t, "elapsed")) * time.Microsecond
		pause := time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1_500_000}).Draw(t, "pause")) * time.Microsecond
		params := make([]scheduler.InsertManyParams, rapid.SampledFrom([]int{1, 2, 4, 7}).Draw(t, "jobs"))
		for i := range params {
			params[i] = job(i)
			for range rapid.IntRange(1, 3).Draw(t, "requests") {
				params[i].Requests = append(params[i].Requests, request("ask"))
			}
		}
		run := func(do func(ctx context.Context, tx pgx.Tx)) {
			err := f.limiter.InTx(context.Background(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
				now = base
				for _, r := range before {
					if _, err := f.limiter.RateLimit(ctx, tx, r); err != nil {
						return err
					}
				}
				if now = base.Add(elapsed); pause > 0 {
					if err := f.limiter.Pause(ctx, tx, pause, asks[0]("x"), asks[2]("y")); err != nil {
						return err
					}
				}
				do(ctx, tx)
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Fatal(err)
			}
		}

		var ones []*scheduler.Inserted
		var onesRows []string
		var onesValues []float64
		run(func(ctx context.Context, tx pgx.Tx) {
			ones = nil
			for _, p := range params {
				in, err := f.jobs.InsertTx(ctx, tx, p.Args, p.InsertOpts, p.Requests...)
				if err != nil && !errors.Is(err, ratelimit.ErrNeverGranted) {
					t.Fatal(err)
				}
				ones = append(ones, in)
				if !in.OK {
					break
				}
			}
			if onesRows, onesValues, err = balances(ctx, tx); err != nil {
				t.Fatal(err)
			}
		})
		run(func(ctx context.Context, tx pgx.Tx) {
			earlier := values(t, ctx, tx)
			many, err := f.jobs.InsertManyTx(ctx, tx, params)
			if last := ones[len(ones)-1]; errors.Is(err, ratelimit.ErrNeverGranted) || err == nil && !many.OK {
				if last.OK {
					t.Fatalf("denied together: %+v %v", many, err)
				}
				if now := values(t, ctx, tx); err == nil &&
					(many.Jobs != nil || many.Err() == nil) || !near(earlier, now) {
					t.Fatalf("denied, and left %+v, where it was %+v; %+v", now, earlier, many)
				}
				denied++
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if last := ones[len(ones)-1]; !last.OK {
				t.Fatalf("granted together, but job %d alone is denied: %+v", len(ones)-1, last.Result)
			}
			granted++
			for i, one := range ones {
				if why := unlike(one, many.Jobs[i]); why != "" {
					t.Fatalf("job %d: %s: one by one\n%+v, together\n%+v", i, why, one.Result, many.Jobs[i].Result)
				}
			}
			if rows, values, err := balances(ctx, tx); err != nil ||
				!slices.Equal(onesRows, rows) || !near(onesValues, values) {
				t.Fatalf("one by one the rows are %v %v, together %v %v; %v", onesRows, onesValues, rows, values, err)
			}
			for _, i := range rapid.Permutation(indexes(len(params))).Draw(t, "order") {
				if r, ok := scheduler.ReservationOf(many.Jobs[i].Job.Job); ok {
					if released, err := f.limiter.Release(ctx, tx, r); err != nil || !released {
						t.Fatal(released, err)
					}
				}
			}
			if now := values(t, ctx, tx); !near(earlier, now) {
				t.Fatalf("the balances were %v, and after all was given back are %v", earlier, now)
			}
		})
		run(func(ctx context.Context, tx pgx.Tx) {
			earlier := values(t, ctx, tx)
			calls := make([][]ratelimit.Request, len(params))
			for i := range params {
				calls[i] = params[i].Requests
			}
			all, each, err := f.limiter.RateLimitMany(ctx, tx, calls)
			if err != nil || !all.OK {
				return
			}
			back := rapid.Permutation(each).Draw(t, "back")
			n := rapid.IntRange(0, len(back)).Draw(t, "first")
			for _, some := range [][]ratelimit.Result{back[:n], back[n:]} {
				if err := f.limiter.GiveBackMany(ctx, tx, some); err != nil {
					t.Fatal(err)
				}
			}
			if now := values(t, ctx, tx); !near(earlier, now) {
				t.Fatalf("the balances were %v, and after all was given back are %v", earlier, now)
			}
		})
	})
	if !t.Failed() && (granted == 0 || denied == 0) {
		t.Errorf("%d granted and %d denied: the test tests nothing", granted, denied)
	}
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// near compares balances.
func near(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a)) })
}

// unlike says in what two inserted jobs differ.
func unlike(a, b *scheduler.Inserted) string {
	switch {
	case a.OK != b.OK || !a.RunAt.Equal(b.RunAt) || a.Limit != b.Limit || a.Key != b.Key || !a.At.Equal(b.At):
		return "another decision"
	case len(a.Outcomes) != len(b.Outcomes):
		return "another number of outcomes"
	case a.Job.Job.State != b.Job.Job.State || !a.RunAt.IsZero() && !a.Job.Job.ScheduledAt.Equal(b.Job.Job.ScheduledAt):
		return fmt.Sprintf("%v at %v and %v at %v", a.Job.Job.State, a.Job.Job.ScheduledAt,
			b.Job.Job.State, b.Job.Job.ScheduledAt)
	}
	for i := range a.Outcomes {
		x, y := a.Outcomes[i], b.Outcomes[i]
		if x.Limit != y.Limit || x.Key != y.Key || !x.RunAt.Equal(y.RunAt) ||
			!x.PacedAt.Equal(y.PacedAt) || math.Abs(x.Value-y.Value) > 1e-9 {
			return fmt.Sprintf("outcome %d", i)
		}
	}
	r, s := a.Reservation(), b.Reservation()
	if len(r.Takes) != len(s.Takes) || r.ID == s.ID {
		return "another reservation"
	}
	for i := range r.Takes {
		x, y := r.Takes[i], s.Takes[i]
		xRun, xPaced := x.RunAt(ratelimit.State{})
		yRun, yPaced := y.RunAt(ratelimit.State{})
		if x.Limit != y.Limit || x.Key != y.Key || math.Abs(x.Count-y.Count) > 1e-12 ||
			!xRun.Equal(yRun) || !xPaced.Equal(yPaced) || x.Ahead() != y.Ahead() {
			return fmt.Sprintf("take %d", i)
		}
	}
	return ""
}

// The first jobs get the tokens that are there, the others wait one behind the other, and each is
// settled, cancelled and listed on its own.
func TestEachOfManyJobsHasAReservationOfItsOwn(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{Jitter: -1})
	const period = 1000 * time.Hour // in which next to nothing flows in while the test runs
	limit := ratelimit.MustDefine("mixed",
		ratelimit.TokenBucket{Rate: 1, Period: period, Capacity: ratelimit.Tokens(3)})
	other := ratelimit.MustDefine("manyOther", ratelimit.FixedWindow{Rate: 10, Period: never})
	later := scheduler.InsertManyParams{Args: laterArgs{}, Requests: []ratelimit.Request{other.For("k")}}
	in := f.insertMany(t, job(0, limit.For("k").Count(2).OrReserve()),
		job(1, limit.For("k").OrReserve(), other.For("k")), later,
		job(3, limit.For("k").OrReserve()), job(4, limit.For("k").OrReserve(),
			limit.For("k").OrReserve()), job(5, limit.For("k").OrReserve()))
	for i, want := range []time.Duration{0, 0, 0, period, 3 * period, 4 * period} {
		one := in.Jobs[i]
		if one.RunAt.IsZero() != (want == 0) || want > 0 && !about(one.RunAt.Sub(one.At), want) ||
			want > 0 && !one.Job.Job.ScheduledAt.Equal(one.RunAt) {
			t.Errorf("job %d runs at %v, scheduled for %v, want %v after %v", i, one.RunAt,
				one.Job.Job.ScheduledAt, want, one.At)
		}
	}
	if !in.OK || !in.RunAt.Equal(in.Jobs[5].RunAt) || in.Limit != "mixed" ||
		len(in.Outcomes) != 8 || len(in.Jobs[4].Outcomes) != 2 {
		t.Errorf("over all: %+v", in.Result)
	}
	if err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		return f.limiter.GiveBack(ctx, tx, in.Result)
	}); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("the decision over all was given back: %v", err)
	}
	f.wantLeft(t, limit.For("k"), -4)
	f.inRC(t, func(tx pgx.Tx) error {
		waiting, err := f.jobs.Waiting(t.Context(), tx, limit.For("k"), 10)
		if err != nil || len(waiting) != 3 || waiting[0].Job.ID != in.Jobs[3].Job.Job.ID {
			t.Errorf("waiting: %+v, %v", waiting, err)
		}
		return err
	})

	first, _ := scheduler.ReservationOf(f.job(t, in.Jobs[0].Job.Job.ID))
	for _, want := range []bool{true, false} {
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			settled, err := f.limiter.Settle(ctx, tx, first, limit.For("k").Count(1))
			if settled != want {
				t.Errorf("settled: %v, want %v", settled, want)
			}
			return err
		})
	}
	f.wantLeft(t, limit.For("k"), -3)
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := f.jobs.CancelTx(t.Context(), tx, in.Jobs[4].Job.Job.ID)
		return err
	})
	f.wantLeft(t, limit.For("k"), -1)
	if last := in.Jobs[5].Job.Job; !f.job(t, last.ID).ScheduledAt.Equal(last.ScheduledAt) {
		t.Error("the last was moved long before its time is near")
	}
}
