package weirtest_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	said string
}

func (*recorder) Helper()                        {}
func (r *recorder) Errorf(f string, args ...any) { r.said = fmt.Sprintf(f, args...) }
func (r *recorder) Fatalf(f string, args ...any) {
	r.Errorf(f, args...)
	runtime.Goexit()
}

// fails is what a helper says when it fails the test; "" if it does not.
func fails(t *testing.T, do func(t testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(r)
	}()
	<-done
	return r.said
}

func TestAssertionsFailWhereTheyShouldAndSayWhatWasMet(t *testing.T) {
	t.Parallel()
	clock := new(weirtest.Clock)
	l := &weirtest.Limiter{Clock: clock}
	ask := func(r ...ratelimit.Request) ratelimit.Result {
		res, err := l.RateLimit(t.Context(), r...)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	granted, ahead := ask(bucket.For("k").Count(10)), ask(bucket.For("k").Count(5).OrReserve())
	denied, none := ask(bucket.For("k"), other.For("k")), ratelimit.Result{}
	away := errors.New("away")
	const at = "at 2026-01-01T12:00:00Z"
	results := map[string]struct {
		res ratelimit.Result
		err error
		say string
	}{
		"granted": {granted, nil, `granted ` + at + `; bucket for "k" has 0 of 10`},
		"ahead":   {ahead, nil, `granted ` + at + `, to run in 500ms, at 2026-01-01T12:00:00.5Z, because of bucket for "k"; bucket for "k" has -5 of 10`},
		"denied":  {denied, nil, `denied ` + at + ` by bucket for "k", until in 600ms, at 2026-01-01T12:00:00.6Z; bucket for "k" has -5 of 10; other for "k" has 3 of 3`},
		"error":   {none, denied.Err(), `ratelimit: limit "bucket" for "k" denied: retry after 600ms, at 2026-01-01T12:00:00.6Z`},
		"none":    {none, nil, `no decision: the zero Result`},
		"away":    {none, away, `failed: away`},
		"open":    {ratelimit.Result{OK: true}, nil, `let through without a decision`},
	}
	for helper, want := range map[string]struct {
		do   func(t testing.TB, res ratelimit.Result, err error)
		good string
		say  string
	}{
		"Granted":  {weirtest.Granted, "granted open", "; want it granted now"},
		"Reserved": {weirtest.Reserved, "ahead", "; want it granted ahead"},
		"Denied": {func(t testing.TB, res ratelimit.Result, err error) {
			weirtest.Denied(t, res, err, bucket)
		}, "denied error", `; want it denied by "bucket"`},
		"DeniedByOthers": {func(t testing.TB, res ratelimit.Result, err error) {
			weirtest.Denied(t, res, err, other)
		}, "", `; want it denied by "other"`},
	} {
		for name, r := range results {
			said := fails(t, func(t testing.TB) { want.do(t, r.res, r.err) })
			if good := strings.Contains(" "+want.good+" ", " "+name+" "); good != (said == "") ||
				!good && said != r.say+want.say {
				t.Errorf("%s of %s said %q, want %q", helper, name, said, r.say+want.say)
			}
		}
	}

	for want, do := range map[string]func(testing.TB){
		"":                               func(t testing.TB) { weirtest.Value(t, l, other.For("k"), 3) },
		`other for "k" has 3 tokens at `: func(t testing.TB) { weirtest.Value(t, l, other.For("k"), 2) },
		`bucket for "k" has -5 tokens at 2026-01-01T12:00:00Z; want 5`: func(t testing.TB) {
			weirtest.Value(t, l, bucket.For("k"), 5)
		},
		`look at 0 of bucket for "": `: func(t testing.TB) { weirtest.Value(t, l, bucket.For(""), 5) },
		`fill 0 of bucket for "": `:    func(t testing.TB) { weirtest.Fill(t, l, bucket.For("")) },
		`0 of bucket for "paused" is paused until 2026-01-01T12:00:01Z`: func(t testing.TB) {
			if err := l.Pause(t.Context(), time.Second, bucket.For("paused")); err != nil {
				panic(err)
			}
			weirtest.Drain(t, l, bucket.For("paused"))
		},
	} {
		if said := fails(t, do); !strings.HasPrefix(said, want) || want == "" && said != "" {
			t.Errorf("said %q, want %q", said, want)
		}
	}
}

// On Postgres, by whatever rule, and with shards.
func TestDrainLeavesNothingAndFillAll(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	clock := new(weirtest.Clock)
	l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	v := l.Autocommit(pool)
	plan := ratelimit.FixedWindow{Rate: 70, Period: time.Hour}
	for _, r := range []ratelimit.Request{
		bucket.For("k"), other.For("k"), other.For("plan").Rule(plan), bucket.For("ahead").OrReserve(),
		bucket.For("leave").Leave(2),
		ratelimit.MustDefine("thirds", ratelimit.TokenBucket{Rate: 1. / 3, Period: 7 * time.Second}).Global(),
		ratelimit.MustDefine("sharded", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour},
			ratelimit.Shards(4)).For("k"),
	} {
		capacity, err := v.Value(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			weirtest.Drain(t, v, r)
			weirtest.Value(t, v, r, 0)
		}
		clock.Add(time.Millisecond)
		weirtest.Drain(t, v, r)
		weirtest.Value(t, v, r, 0)
		weirtest.Fill(t, v, r)
		weirtest.Value(t, v, r, capacity.Value)
	}
}
