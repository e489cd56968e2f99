package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// about compares times by the clock of the database, which goes on between statements.
func about(d, want time.Duration) bool { return d > want-time.Second && d <= want }

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
	found, err := tx.Query(ctx, `SELECT name, key, shard, value, coalesce(moved, 0), ts, paused_until, delay, capacity, rate, period, origin
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
	f := setUp(t, scheduler.Config{})
	var now time.Time
	var err error
	if f.limiter, err = ratelimit.New(ratelimit.Config{Clock: func() time.Time { return now }}); err != nil {
		t.Fatal(err)
	}
	f.jobs = scheduler.New(f.limiter, scheduler.Config{Jitter: -1}).Jobs(f.client)
	const second = 1 << 20 * time.Microsecond // in which float64 counts tokens without rounding
	bucket := ratelimit.TokenBucket{Rate: 3, Period: second, Capacity: ratelimit.Tokens(5)}
	bounded := ratelimit.TokenBucket{Rate: 1, Period: second, Capacity: ratelimit.Tokens(4), MaxReserved: ratelimit.Tokens(6)}
	asks := []func(key string) ratelimit.Request{
		func(key string) ratelimit.Request { return ratelimit.MustDefine("bucket", bucket).For(key).OrReserve() },
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("bounded", bounded).For(key).OrReserve()
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 4, Period: 10 * time.Second}).For(key).OrReserve()
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("now", ratelimit.TokenBucket{Rate: 30, Period: second}).For(key)
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("leave", ratelimit.TokenBucket{Rate: 30, Period: second}).For(key).Leave(5)
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("within", bucket).For(key).Within(4 * time.Second)
		},
		func(key string) ratelimit.Request {
			return ratelimit.MustDefine("credit", bounded).For(key).OnCredit().OrReserve()
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
		before := rapid.SliceOfN(rapid.Custom(func(*rapid.T) ratelimit.Request { return request("before") }), 0, 4).Draw(t, "earlier")
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
				if now := values(t, ctx, tx); err == nil && (many.Jobs != nil || many.Err() == nil) || !near(earlier, now) {
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
			if rows, values, err := balances(ctx, tx); err != nil || !slices.Equal(onesRows, rows) || !near(onesValues, values) {
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
		return fmt.Sprintf("%v at %v and %v at %v", a.Job.Job.State, a.Job.Job.ScheduledAt, b.Job.Job.State, b.Job.Job.ScheduledAt)
	}
	for i := range a.Outcomes {
		x, y := a.Outcomes[i], b.Outcomes[i]
		if x.Limit != y.Limit || x.Key != y.Key || !x.RunAt.Equal(y.RunAt) || !x.PacedAt.Equal(y.PacedAt) || math.Abs(x.Value-y.Value) > 1e-9 {
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
		if x.Limit != y.Limit || x.Key != y.Key || math.Abs(x.Count-y.Count) > 1e-12 || !xRun.Equal(yRun) || !xPaced.Equal(yPaced) || x.Ahead() != y.Ahead() {
			return fmt.Sprintf("take %d", i)
		}
	}
	return ""
}

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
// the same: if all are granted, if they are denied, if all are duplicates, and if River refuses
// one.
func TestManyJobsTakeAsManyRoundTripsAsOne(t *testing.T) {
	t.Parallel()
	counter := &tripCounter{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.Tracer = 1, counter })
	f := setUpOn(t, pool, scheduler.Config{})
	bucket := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	window := ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 2, Period: time.Hour})
	shared := ratelimit.MustDefine("shared", ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(64)}, ratelimit.Shards(4))
	shadow := ratelimit.MustDefine("shadow", ratelimit.TokenBucket{Rate: 2, Period: time.Hour}, ratelimit.Shadow())
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	params := func(n int, opts *river.InsertOpts, more ...ratelimit.Request) []scheduler.InsertManyParams {
		all := make([]scheduler.InsertManyParams, n)
		for i := range all {
			key := fmt.Sprint(i % 150)
			all[i] = scheduler.InsertManyParams{Args: sendArgs{i}, InsertOpts: opts, Requests: append([]ratelimit.Request{
				bucket.For(key).OrReserve(), bucket.For("all").OrReserve(), window.For(key).OrReserve(), shared.For("k").OrReserve(), shadow.For(key),
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
	drained := ratelimit.MustDefine("drained", ratelimit.TokenBucket{Rate: 400, Period: time.Hour})
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
			t.Errorf("%s: %d round trips for 3 jobs and %d for 300, want about as many, and at most %d", name, few, many, c.most)
		}
	}
}

// The first jobs get the tokens that are there, the others wait one behind the other, and each is
// settled, cancelled and listed on its own.
func TestEachOfManyJobsHasAReservationOfItsOwn(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("mixed", ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(3)})
	other := ratelimit.MustDefine("other", ratelimit.FixedWindow{Rate: 10, Period: never})
	later := scheduler.InsertManyParams{Args: laterArgs{}, Requests: []ratelimit.Request{other.For("k")}}
	in := f.insertMany(t, job(0, limit.For("k").Count(2).OrReserve()), job(1, limit.For("k").OrReserve(), other.For("k")), later,
		job(3, limit.For("k").OrReserve()), job(4, limit.For("k").OrReserve(), limit.For("k").OrReserve()), job(5, limit.For("k").OrReserve()))
	for i, want := range []time.Duration{0, 0, 0, time.Hour, 3 * time.Hour, 4 * time.Hour} {
		one := in.Jobs[i]
		if one.RunAt.IsZero() != (want == 0) || want > 0 && !about(one.RunAt.Sub(one.At), want) || want > 0 && !one.Job.Job.ScheduledAt.Equal(one.RunAt) {
			t.Errorf("job %d runs at %v, scheduled for %v, want %v after %v", i, one.RunAt, one.Job.Job.ScheduledAt, want, one.At)
		}
	}
	if !in.OK || !in.RunAt.Equal(in.Jobs[5].RunAt) || in.Limit != "mixed" || len(in.Outcomes) != 8 || len(in.Jobs[4].Outcomes) != 2 {
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

func TestIfOneOfManyJobsIsDeniedNoneIsInserted(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	plenty := ratelimit.MustDefine("plenty", ratelimit.TokenBucket{Rate: 10, Period: never})
	bounded := ratelimit.MustDefine("bounded", ratelimit.TokenBucket{Rate: 3, Period: never, MaxReserved: ratelimit.Tokens(2)})
	f.insert(t, sendArgs{0}, nil, bounded.For("k").Count(2))
	var params []scheduler.InsertManyParams
	for i := range 4 {
		params = append(params, job(i, bounded.For("k").OrReserve(), plenty.For("k"), bounded.For(fmt.Sprint(i)).OrReserve()))
	}
	in := f.insertMany(t, params...)
	var denied *ratelimit.DeniedError
	if in.OK || in.Jobs != nil || in.Limit != "bounded" || in.Key != "k" || !errors.As(in.Err(), &denied) || in.RetryAt.IsZero() {
		t.Errorf("got %+v, want a denial by what is bounded", in)
	}
	f.want(t, bounded.For("k"), 1, 1)
	f.want(t, bounded.For("0"), 3, 1)
	f.want(t, plenty.For("k"), 10, 1)

	// In a transaction that goes on, it has taken nothing either.
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		in, err := f.jobs.InsertManyTx(ctx, tx, params)
		if err != nil || in.OK {
			t.Errorf("got %+v and %v", in, err)
		}
		return nil
	})
	f.want(t, plenty.For("k"), 10, 1)
	if in := f.insertMany(t, params[:3]...); !in.OK {
		t.Errorf("three are not granted: %+v", in.Result)
	}
	f.want(t, bounded.For("k"), -2, 4)
}

// What can never be granted, or says two things of one balance, is an error that says so before
// anything is sent.
func TestManyJobsThatAreWrongAreRefused(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("refused", ratelimit.TokenBucket{Rate: 3, Period: never, MaxReserved: ratelimit.Tokens(2)})
	plan := ratelimit.TokenBucket{Rate: 4, Period: never}
	ask := limit.For("k")
	for name, c := range map[string]struct {
		params []scheduler.InsertManyParams
		is     error
		says   string
	}{
		"none":          {nil, nil, "params is empty"},
		"no arguments":  {[]scheduler.InsertManyParams{job(0, ask), {Requests: []ratelimit.Request{ask}}}, nil, "params[1]"},
		"no requests":   {[]scheduler.InsertManyParams{job(0, ask), job(1)}, ratelimit.ErrInvalid, "calls[1]"},
		"never":         {[]scheduler.InsertManyParams{job(0, ask.Count(3).OrReserve()), job(1, ask.Count(3).OrReserve())}, ratelimit.ErrNeverGranted, `"refused"`},
		"OrReserve":     {[]scheduler.InsertManyParams{job(0, ask), job(1, ask.OrReserve())}, ratelimit.ErrInvalid, "OrReserve in both or in none"},
		"its own rule":  {[]scheduler.InsertManyParams{job(0, ask), job(1, ask.Rule(plan))}, ratelimit.ErrInvalid, "the same rule in both"},
		"a bad key":     {[]scheduler.InsertManyParams{job(0, ask), job(1, limit.For(""))}, ratelimit.ErrInvalid, "it is empty"},
		"River's no":    {[]scheduler.InsertManyParams{job(0, ask), {Args: unknownArgs{}, Requests: []ratelimit.Request{ask}}}, nil, "unknown"},
		"bad metadata":  {[]scheduler.InsertManyParams{{Args: sendArgs{}, InsertOpts: &river.InsertOpts{Metadata: []byte("[")}, Requests: []ratelimit.Request{ask}}}, nil, "params[0]"},
		"bad options":   {[]scheduler.InsertManyParams{{Args: sendArgs{}, InsertOpts: &river.InsertOpts{Priority: 9}, Requests: []ratelimit.Request{ask}}}, nil, "riority"},
		"zero requests": {[]scheduler.InsertManyParams{job(0, ratelimit.Request{})}, ratelimit.ErrInvalid, "zero Limit"},
	} {
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			_, err := f.jobs.InsertManyTx(ctx, tx, c.params)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want one that says %q", name, err, c.says)
			}
			return nil // commits all the same
		})
	}
	f.want(t, ask, 3, 0)

	if _, err := scheduler.New(f.limiter, scheduler.Config{}).Jobs(onlyOne{f.client}).InsertMany(t.Context(), f.pool, []scheduler.InsertManyParams{job(0, ask)}); err == nil ||
		!strings.Contains(err.Error(), "InsertManyTx") {
		t.Errorf("a client without InsertManyTx: %v", err)
	}
	if _, err := scheduler.New(nil, scheduler.Config{}).Jobs(f.client).InsertMany(t.Context(), f.pool, []scheduler.InsertManyParams{job(0, ask)}); err == nil {
		t.Error("a scheduler without a limiter inserted")
	}
}

// onlyOne is a River client that inserts one job at a time.
type onlyOne struct{ scheduler.Client }

// A rule of the request's own, and requests with and without OrReserve, may stand beside each other
// for different keys.
func TestManyJobsMayAskDifferentlyOfDifferentKeys(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("differ", ratelimit.TokenBucket{Rate: 2, Period: time.Hour})
	plan := ratelimit.TokenBucket{Rate: 20, Period: time.Hour}
	in := f.insertMany(t, job(0, limit.For("a").Count(2)), job(1, limit.For("b").Count(3).OrReserve()), job(2, limit.For("c").Count(15).Rule(plan)),
		job(3, limit.For("c").Count(5).Rule(plan)), job(4, limit.For("d").Count(0)))
	if !in.OK || !in.Jobs[0].RunAt.IsZero() || !about(in.Jobs[1].RunAt.Sub(in.At), 30*time.Minute) || !in.Jobs[3].RunAt.IsZero() {
		t.Errorf("got %+v", in.Result)
	}
	f.want(t, limit.For("a"), 0, 5)
	f.want(t, limit.For("b"), -1, 5)
	f.want(t, limit.For("c").Rule(plan), 0, 5)
	f.want(t, limit.For("d"), 2, 5)
	if v := in.Jobs[2].Outcomes[0].Value; v != 5 {
		t.Errorf("after the first of two jobs %v tokens were left, want 5", v)
	}
}

// On credit each job waits for those before it, and not for its own tokens. What may be owed before
// it is bounded.
func TestManyJobsOnCreditWaitForEachOther(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("credit", ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(4), MaxReserved: ratelimit.Tokens(6)})
	f.insert(t, sendArgs{0}, nil, limit.For("k").Count(3))
	var params []scheduler.InsertManyParams
	for i := range 4 {
		params = append(params, job(i, limit.For("k").Count(3).OnCredit().OrReserve()))
	}
	if in := f.insertMany(t, params...); in.OK || in.Limit != "credit" {
		t.Errorf("the last waits for 8, and 6 are the most: %+v", in.Result)
	}
	in := f.insertMany(t, params[:3]...)
	for i, want := range []time.Duration{0, 2 * time.Hour, 5 * time.Hour} {
		if one := in.Jobs[i]; one.RunAt.IsZero() != (want == 0) || want > 0 && !about(one.RunAt.Sub(one.At), want) {
			t.Errorf("job %d runs at %v, want %v after %v", i, one.RunAt, want, one.At)
		}
	}
	f.want(t, limit.For("k"), -8, 4)
}

// On a client with the scheduler's configuration each of them starts when it is due, and not at the
// next tick of River's leader.
func TestManyJobsStartOnTime(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(j.client(t, sched))
	limit := ratelimit.MustDefine("ontime", ratelimit.TokenBucket{Rate: 5, Period: time.Second,
		Capacity: ratelimit.Tokens(1)})
	var params []scheduler.InsertManyParams
	for i := range 6 {
		params = append(params, job(i, limit.For("k").OrReserve()))
	}
	in, err := jobs.InsertMany(t.Context(), f.pool, params)
	if err != nil || !in.OK {
		t.Fatal(in, err)
	}
	for _, s := range j.await(t, len(params)) {
		due := in.Jobs[s.n].RunAt
		if late := s.at.Sub(due); !due.IsZero() && (late < 0 || late > 2*time.Second) {
			t.Errorf("job %d started %v after it was due", s.n, late)
		}
	}
}

// A job that exists already takes nothing. The others keep their places, and the tokens that it
// leaves are the next caller's.
func TestDuplicatesAmongManyJobsTakeNothing(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]ratelimit.Option{"one row": nil, "shards": {ratelimit.Shards(4)}} {
		for kind, rule := range map[string]ratelimit.Rule{
			"bucket": ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(4)},
			"window": ratelimit.FixedWindow{Rate: 4, Period: time.Hour},
		} {
			t.Run(name+" of a "+kind, func(t *testing.T) {
				t.Parallel()
				f := setUp(t, scheduler.Config{Jitter: -1})
				limit := ratelimit.MustDefine("unique", rule, options...)
				unique := func(n int) scheduler.InsertManyParams {
					p := job(n, limit.For("k").Count(2).OrReserve())
					p.InsertOpts = &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
					return p
				}
				free := ratelimit.MustDefine("free", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour})
				for _, n := range []int{0, 3} {
					p := unique(n)
					p.Requests = []ratelimit.Request{free.For("k")}
					f.insertMany(t, p)
				}
				in := f.insertMany(t, unique(0), unique(1), unique(2), unique(3), unique(4))
				for i, one := range in.Jobs {
					duplicate := i == 0 || i == 3
					if one.Job.UniqueSkippedAsDuplicate != duplicate || !one.OK || duplicate != (len(one.Reservation().Takes) == 0) {
						t.Errorf("job %d: %+v, %+v", i, one.Job, one.Result)
					}
				}
				if !in.Jobs[0].RunAt.IsZero() || !in.Jobs[1].RunAt.IsZero() || in.Jobs[2].RunAt.IsZero() || in.Jobs[4].RunAt.Before(in.Jobs[2].RunAt) {
					t.Errorf("places: %v, %v, %v", in.Jobs[1].RunAt, in.Jobs[2].RunAt, in.Jobs[4].RunAt)
				}
				f.want(t, limit.For("k"), 4-3*2, 5)
				again := f.insertMany(t, unique(0), unique(1), unique(2), unique(3), unique(4))
				if !again.Jobs[4].Job.UniqueSkippedAsDuplicate {
					t.Errorf("inserted again: %+v", again.Jobs[4])
				}
				f.want(t, limit.For("k"), 4-3*2, 5)
			})
		}
	}
}

// River cannot insert two jobs of one call that are duplicates of each other: the transaction is
// dead then, and nothing kept.
func TestTwoOfManyJobsMustNotBeDuplicatesOfEachOther(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("twice", ratelimit.TokenBucket{Rate: 10, Period: never})
	p := job(1, limit.For("k"))
	p.InsertOpts = &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	if in, err := f.jobs.InsertMany(t.Context(), f.pool, []scheduler.InsertManyParams{p, p}); err == nil {
		t.Errorf("inserted: %+v", in)
	}
	f.want(t, limit.For("k"), 10, 0)
}

// A limit in the shadow denies no job. What it would not grant to all of them it does not take.
func TestShadowsOfManyJobs(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	rule := ratelimit.TokenBucket{Rate: 3, Period: never}
	limit := ratelimit.MustDefine("shaded", ratelimit.TokenBucket{Rate: 10, Period: never})
	shadow := ratelimit.MustDefine("shaded", rule, ratelimit.Shadow())
	sharded := ratelimit.MustDefine("spread", rule, ratelimit.Shadow(), ratelimit.Shards(2))
	in := f.insertMany(t, job(0, limit.For("k"), shadow.For("few")), job(1, shadow.For("few").Count(2), limit.For("k")),
		job(2, shadow.For("many").Count(2)), job(3, shadow.For("many").Count(2)), job(4, sharded.For("k"), shadow.For("most").Count(2)))
	if !in.OK || len(in.Jobs) != 5 {
		t.Fatalf("got %+v", in.Result)
	}
	for i, want := range []bool{true, true, false, false, true} {
		for _, o := range in.Jobs[i].Outcomes {
			if o.Shadow && o.OK != want {
				t.Errorf("job %d: %+v", i, o)
			}
		}
		if takes := in.Jobs[i].Reservation().Takes; len(takes) > 1 || len(takes) == 1 && takes[0].Limit != "shaded" {
			t.Errorf("job %d has reserved %+v", i, takes)
		}
	}
	f.want(t, limit.For("k"), 8, 5)
	f.want(t, shadow.For("few"), 0, 5)
	f.want(t, shadow.For("many"), 3, 5)
	f.want(t, shadow.For("most"), 1, 5)
	f.want(t, sharded.For("k"), 2, 5)
}

// What many jobs took from the shards of a limit goes back to them, whichever jobs do not run, and
// never more than was taken.
func TestManyJobsOfALimitWithShards(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("shared", ratelimit.TokenBucket{Rate: 4, Period: never, Capacity: ratelimit.Tokens(64)}, ratelimit.Shards(4))
	for _, tc := range []struct {
		key      string
		jobs     int
		count    float64
		waiting  int
		released []int
	}{
		{"one shard", 3, 2, 0, []int{2, 0, 1}},
		{"several shards", 10, 4.5, 0, []int{3, 9, 0, 1, 2, 4, 5, 8, 7, 6}},
		{"in debt", 5, 16, 1, []int{4, 3, 2, 1, 0}},
	} {
		var params []scheduler.InsertManyParams
		for i := range tc.jobs {
			params = append(params, job(i, limit.For(tc.key).Count(tc.count).OrReserve()))
		}
		in := f.insertMany(t, params...)
		left, waiting := 64-float64(tc.jobs)*tc.count, 0
		for i, one := range in.Jobs {
			if !one.RunAt.IsZero() {
				waiting++
			}
			if v := one.Outcomes[0].Value; math.Abs(v-(64-float64(i+1)*tc.count)) > 1e-3 {
				t.Errorf("%s: job %d left %v", tc.key, i, v)
			}
		}
		if waiting != tc.waiting {
			t.Errorf("%s: %d wait, want %d", tc.key, waiting, tc.waiting)
		}
		f.want(t, limit.For(tc.key), left, -1)
		for _, i := range tc.released {
			r, _ := scheduler.ReservationOf(f.job(t, in.Jobs[i].Job.Job.ID))
			f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
				_, err := f.limiter.Release(ctx, tx, r)
				return err
			})
			left += tc.count
			f.want(t, limit.For(tc.key), left, -1)
		}
	}
}

// InsertMany runs again if it meets others, and each run starts anew.
func TestManyJobsAreInsertedBesideOthers(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("beside", ratelimit.TokenBucket{Rate: 100, Period: never})
	const callers, each, keys = 6, 5, 10
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for range each {
				var params []scheduler.InsertManyParams
				for i := range keys {
					params = append(params, job(i, limit.For(fmt.Sprint((i+c)%keys)).OrReserve(), limit.For("all").OrReserve()))
				}
				if in, err := f.jobs.InsertMany(context.WithoutCancel(t.Context()), f.pool, params); err != nil || !in.OK {
					t.Error(in, err)
				}
			}
		})
	}
	all.Wait()
	f.want(t, limit.For("all"), 100-callers*each*keys, callers*each*keys)
}
