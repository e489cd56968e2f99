package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestIfOneOfManyJobsIsDeniedNoneIsInserted(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	plenty := ratelimit.MustDefine("plentyOfMany", ratelimit.TokenBucket{Rate: 10, Period: never})
	bounded := ratelimit.MustDefine("bounded",
		ratelimit.TokenBucket{Rate: 3, Period: never, MaxReserved: ratelimit.Tokens(2)})
	f.insert(t, sendArgs{0}, nil, bounded.For("k").Count(2))
	var params []scheduler.InsertManyParams
	for i := range 4 {
		params = append(params, job(i, bounded.For("k").OrReserve(), plenty.For("k"),
			bounded.For(fmt.Sprint(i)).OrReserve()))
	}
	in := f.insertMany(t, params...)
	var denied *ratelimit.DeniedError
	if in.OK || in.Jobs != nil || in.Limit != "bounded" || in.Key != "k" ||
		!errors.As(in.Err(), &denied) || in.RetryAt.IsZero() {
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
	limit := ratelimit.MustDefine("refusedOfMany",
		ratelimit.TokenBucket{Rate: 3, Period: never, MaxReserved: ratelimit.Tokens(2)})
	plan := ratelimit.TokenBucket{Rate: 4, Period: never}
	ask := limit.For("k")
	for name, c := range map[string]struct {
		params []scheduler.InsertManyParams
		is     error
		says   string
	}{
		"none":         {nil, nil, "params is empty"},
		"no arguments": {[]scheduler.InsertManyParams{job(0, ask), {Requests: []ratelimit.Request{ask}}}, nil, "params[1]"},
		"no requests":  {[]scheduler.InsertManyParams{job(0, ask), job(1)}, ratelimit.ErrInvalid, "calls[1]"},
		"never": {[]scheduler.InsertManyParams{job(0, ask.Count(3).OrReserve()),
			job(1, ask.Count(3).OrReserve())}, ratelimit.ErrNeverGranted, `"refusedOfMany"`},
		"OrReserve": {[]scheduler.InsertManyParams{job(0, ask), job(1, ask.OrReserve())},
			ratelimit.ErrInvalid, "OrReserve in both or in none"},
		"its own rule": {[]scheduler.InsertManyParams{job(0, ask), job(1, ask.Rule(plan))}, ratelimit.ErrInvalid, "the same rule in both"},
		"a bad key":    {[]scheduler.InsertManyParams{job(0, ask), job(1, limit.For(""))}, ratelimit.ErrInvalid, "it is empty"},
		"River's no": {[]scheduler.InsertManyParams{job(0, ask),
			{Args: unknownArgs{}, Requests: []ratelimit.Request{ask}}}, nil, "unknown"},
		"bad metadata": {[]scheduler.InsertManyParams{{Args: sendArgs{},
			InsertOpts: &river.InsertOpts{Metadata: []byte("[")}, Requests: []ratelimit.Request{
				ask,
			}}},
			nil, "params[0]"},
		"bad options": {[]scheduler.InsertManyParams{{Args: sendArgs{},
			InsertOpts: &river.InsertOpts{Priority: 9}, Requests: []ratelimit.Request{ask}}},
			nil, "riority"},
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

	if _, err := scheduler.New(f.limiter, scheduler.Config{}).Jobs(onlyOne{f.client}).
		InsertMany(t.Context(), f.pool, []scheduler.InsertManyParams{job(0, ask)}); err == nil ||
		!strings.Contains(err.Error(), "InsertManyTx") {
		t.Errorf("a client without InsertManyTx: %v", err)
	}
	if _, err := scheduler.New(nil, scheduler.Config{}).Jobs(f.client).InsertMany(t.Context(),
		f.pool, []scheduler.InsertManyParams{job(0, ask)}); err == nil {
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
	plan := ratelimit.TokenBucket{Rate: 20, Period: never}
	in := f.insertMany(t, job(0, limit.For("a").Count(2)),
		job(1, limit.For("b").Count(3).OrReserve()), job(2, limit.For("c").Count(15).Rule(plan)),
		job(3, limit.For("c").Count(5).Rule(plan)), job(4, limit.For("d").Count(0)))
	if !in.OK || !in.Jobs[0].RunAt.IsZero() ||
		!about(in.Jobs[1].RunAt.Sub(in.At), 30*time.Minute) || !in.Jobs[3].RunAt.IsZero() {
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
	limit := ratelimit.MustDefine("credit", ratelimit.TokenBucket{Rate: 1, Period: time.Hour,
		Capacity: ratelimit.Tokens(4), MaxReserved: ratelimit.Tokens(6)})
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

// On a client with the scheduler's configuration none of them starts before it is due.
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
		if s.at.Before(due) {
			t.Errorf("job %d started %v early", s.n, due.Sub(s.at))
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
			"window": ratelimit.FixedWindow{Rate: 4, Period: never},
		} {
			t.Run(name+" of a "+kind, func(t *testing.T) {
				t.Parallel()
				f := setUp(t, scheduler.Config{Jitter: -1})
				limit := ratelimit.MustDefine("uniqueOfMany"+name+kind, rule, options...)
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
					if one.Job.UniqueSkippedAsDuplicate != duplicate || !one.OK ||
						duplicate != (len(one.Reservation().Takes) == 0) {
						t.Errorf("job %d: %+v, %+v", i, one.Job, one.Result)
					}
				}
				if !in.Jobs[0].RunAt.IsZero() || !in.Jobs[1].RunAt.IsZero() ||
					in.Jobs[2].RunAt.IsZero() || in.Jobs[4].RunAt.Before(in.Jobs[2].RunAt) {
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
	limit := ratelimit.MustDefine("twiceInMany", ratelimit.TokenBucket{Rate: 10, Period: never})
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
		job(2, shadow.For("many").Count(2)), job(3, shadow.For("many").Count(2)),
		job(4, sharded.For("k"), shadow.For("most").Count(2)))
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
	limit := ratelimit.MustDefine("sharedByMany", ratelimit.TokenBucket{Rate: 4, Period: never,
		Capacity: ratelimit.Tokens(64)}, ratelimit.Shards(4))
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
					params = append(params, job(i, limit.For(fmt.Sprint((i+c)%keys)).OrReserve(),
						limit.For("all").OrReserve()))
				}
				if in, err := f.jobs.InsertMany(context.WithoutCancel(t.Context()), f.pool,
					params); err != nil || !in.OK {
					t.Error(in, err)
				}
			}
		})
	}
	all.Wait()
	f.want(t, limit.For("all"), 100-callers*each*keys, callers*each*keys)
}
