package ratelimit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

func TestForetellTellsWhatAWholeCallMeets(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 10, Period: sec, MaxReserved: tok(5)})
	window := ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 3, Period: time.Minute, Start: t0})
	states := map[string]ratelimit.State{"bucket k": {Value: 4, TS: t0}}
	state := func(limit, key string) ratelimit.State { return states[limit+" "+key] }
	now := t0.Add(100 * ms)

	requests := []ratelimit.Request{window.For("k"), bucket.For("k").Count(3), window.For("k")}
	res, after, err := ratelimit.Foretell(now, state, requests...)
	if err != nil || !res.OK || !res.At.Equal(now) || len(after) != 3 || after[0].Value != 1 ||
		after[1].Value != 2 || after[2] != after[0] {
		t.Fatalf("%+v, %+v, %v; want 1, 2 and 1 left", res, after, err)
	}
	if o := res.Outcomes[2]; o.Limit != "window" || o.Value != 1 || o.Capacity != 3 ||
		!o.WindowEnds.Equal(t0.Add(time.Minute)) {
		t.Errorf("%+v", o)
	}
	if r := res.Reservation(); len(r.Takes) != 2 || r.Takes[0].Count != 3 ||
		r.Takes[1].Count != 2 || r.ID == (ratelimit.Reservation{}).ID {
		t.Errorf("%+v, want what was taken", r)
	}

	res, after, err = ratelimit.Foretell(now, state, window.For("k"), bucket.For("k").Count(7))
	if err != nil || res.OK || res.Limit != "bucket" || res.RetryAfter() != 200*ms ||
		after[0].Value != 3 || after[1].Value != 5 || res.Outcomes[0].Value != 3 {
		t.Errorf("%+v, %+v, %v; want it denied for 200 ms, and nothing taken", res, after, err)
	}
	res, after, err = ratelimit.Foretell(now, state, bucket.For("k").Count(7).OrReserve())
	if err != nil || !res.OK || !res.RunAt.Equal(now.Add(200*ms)) || after[0].Value != -2 {
		t.Errorf("%+v, %+v, %v; want it granted ahead", res, after, err)
	}

	trial := ratelimit.MustDefine("window",
		ratelimit.FixedWindow{Rate: 1, Period: time.Minute, Start: t0}, ratelimit.Shadow())
	for i, r := range []ratelimit.Request{trial.For("k"), trial.For("k").Count(2)} {
		res, after, err = ratelimit.Foretell(now, state, r, bucket.For("k"))
		if o := res.Outcomes; err != nil || !res.OK || o[0].OK != (i == 0) || !o[0].Shadow ||
			after[0].Value != float64(i) ||
			after[1].Value != 4 || len(res.Reservation().Takes) != 1 {
			t.Errorf("%+v, %+v, %v; want a shadow beside it", res, after, err)
		}
	}

	for _, bad := range []error{
		third(ratelimit.Foretell(now, state)),
		third(ratelimit.Foretell(now, state, bucket.For(""))),
		third(ratelimit.Foretell(time.Time{}.AddDate(-1, 0, 0), state, bucket.For("k"))),
		third(ratelimit.Foretell(now, func(string, string) ratelimit.State {
			return ratelimit.State{Value: 1}
		}, bucket.For("k"))),
	} {
		if !errors.Is(bad, ratelimit.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", bad)
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }

func TestARequestTellsWhatItAsks(t *testing.T) {
	t.Parallel()
	l := ratelimit.MustDefine("limit", ratelimit.TokenBucket{Rate: 10, Period: sec})
	for want, r := range map[string]ratelimit.Request{
		`1 of limit`:                             l.Global(),
		`0.5 of limit for "k"`:                   l.For("k").Count(0.5),
		`2 of limit for "k", OrReserve`:          l.For("k").Count(2).OrReserve(),
		`1 of limit for "", Within 1s, OnCredit`: l.For("").Within(sec).OnCredit(),
		`3 of limit for "k", Leave 2`:            l.For("k").Count(3).Leave(2),
		`1 of limit, by a rule of its own`:       l.Global().Rule(ratelimit.FixedWindow{Rate: 1, Period: sec}),
		`0 of the zero Limit`:                    {},
	} {
		if got := r.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if r := l.For("k"); r.Limit() != l || r.Key() != "k" || r != l.For("k").Count(1) ||
		r == l.For("k").Count(2) || l.Global().Key() != "" {
		t.Error("a request does not tell its limit and key")
	}
}
