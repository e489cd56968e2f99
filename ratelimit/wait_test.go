package ratelimit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// spot is a place in a line, which is granted for later and put off then as often as it is told.
type spot struct {
	runs  time.Duration
	later []time.Duration // what is left at each look
	err   error           // of a look
	stuck error           // of giving back

	asked       []Request
	looks, gave int
}

func (p *spot) RateLimit(_ context.Context, requests ...Request) (Result, error) {
	p.asked = requests
	calls, err := resolveAll(requests)
	if err != nil {
		return Result{}, err
	}
	b := algebra.Balance{Exists: true, Value: 0, TS: at(0).UnixMicro(), PausedUntil: algebra.Open}
	b.Value = -p.runs.Seconds() * calls[0].Rate / (float64(calls[0].Period) / 1e6)
	b.Value += calls[0].Count
	v := calls[0].Decide(b, b.TS)
	return summarize(calls, []algebra.Verdict{v}, nil), nil
}

func (p *spot) GiveBack(ctx context.Context, _ Result) error {
	p.gave++
	return errors.Join(p.stuck, ctx.Err())
}

func (p *spot) left(context.Context, Result) (time.Duration, error) {
	p.looks++
	if p.err != nil {
		return 0, p.err
	}
	if len(p.later) == 0 {
		return 0, nil
	}
	left := p.later[0]
	p.later = p.later[1:]
	return left, nil
}

func TestWaitReturnsWhenTheWorkMayRun(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		p     spot
		took  time.Duration
		looks int
	}{
		"at once":      {spot{}, 0, 0},
		"later":        {spot{runs: 6 * time.Second}, 6 * time.Second, 1},
		"put off once": {spot{runs: 6 * time.Second, later: []time.Duration{time.Minute}}, 66 * time.Second, 2},
		"put off by little": {spot{
			runs: 6 * time.Second, later: []time.Duration{time.Second, time.Microsecond},
		}, 7*time.Second + time.Microsecond, 3},
		"moved up, and past":     {spot{runs: 6 * time.Second, later: []time.Duration{-time.Minute}}, 6 * time.Second, 1},
		"a day, without a limit": {spot{runs: 24 * time.Hour}, 24 * time.Hour, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			res, err := wait(t.Context(), &tc.p, []Request{apples.For("x")})
			if took := time.Since(began); err != nil || !res.OK || took != tc.took ||
				tc.p.looks != tc.looks || tc.p.gave != 0 {
				t.Errorf("%s: %v after %v, %d looks, given back %d times: %v", name, res.OK, took,
					tc.p.looks, tc.p.gave, err)
			}
		})
	}
}

// An error means that the work must not run, and nothing is kept then.
func TestWaitThatFailsGivesBack(t *testing.T) {
	t.Parallel()
	broken, stuck := errors.New("broken"), errors.New("stuck")
	for name, tc := range map[string]struct {
		p      spot
		cancel time.Duration // 0: not
		most   time.Duration // of the deadline; 0: none
		want   error
		took   time.Duration
		gave   int
	}{
		"cancelled":               {spot{runs: time.Minute}, time.Second, 0, context.Canceled, time.Second, 1},
		"cancelled before":        {spot{runs: time.Minute}, -1, 0, context.Canceled, 0, 0},
		"the look fails":          {spot{runs: time.Minute, err: broken}, 0, 0, broken, time.Minute, 1},
		"so does giving back":     {spot{runs: time.Minute, stuck: stuck}, time.Second, 0, stuck, time.Second, 1},
		"denied for the deadline": {spot{runs: time.Minute}, 0, 59 * time.Second, ErrDenied, 0, 0},
		"put off beyond the deadline": {spot{
			runs: time.Minute, later: []time.Duration{time.Minute},
		}, 0, 2*time.Minute - 1, context.DeadlineExceeded, time.Minute, 1},
		"more than comes by the deadline": {spot{}, 0, 100 * time.Microsecond, context.DeadlineExceeded, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch {
			case tc.cancel < 0:
				cancel()
			case tc.cancel > 0:
				time.AfterFunc(tc.cancel, cancel)
			}
			if tc.most > 0 {
				var done context.CancelFunc
				ctx, done = context.WithTimeout(ctx, tc.most)
				defer done()
			}
			began := time.Now()
			r := apples.For("x")
			if tc.most > 0 && tc.most < time.Second {
				r = r.Count(11)
			}
			res, err := wait(ctx, &tc.p, []Request{r})
			took := time.Since(began)
			if !errors.Is(err, tc.want) || res.OK || took != tc.took || tc.p.gave != tc.gave ||
				strings.Count(err.Error(), "ratelimit:") > 1 {
				t.Errorf("%s: %+v after %v, given back %d times: %v", name, res, took, tc.p.gave, err)
			}
			if denied := (*DeniedError)(nil); errors.As(err, &denied) == res.RetryAt.IsZero() {
				t.Errorf("%s: %+v with %v", name, res, err)
			}
			synctest.Wait()
		})
	}
}

// What is asked for has to come before ctx ends, or earlier if it says so itself.
func TestWaitReservesWithinWhatIsLeftOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for name, tc := range map[string]struct {
			ctx    context.Context
			r      Request
			within time.Duration // -1: unbounded
		}{
			"no deadline":               {t.Context(), apples.For("x"), -1},
			"no deadline but its own":   {t.Context(), apples.For("x").Within(time.Second), time.Second},
			"the deadline":              {ctx, apples.For("x"), time.Minute},
			"its own, which is earlier": {ctx, apples.For("x").Within(time.Second), time.Second},
			"its own, which is later":   {ctx, apples.For("x").Within(time.Hour), time.Minute},
			"on credit":                 {ctx, apples.For("x").OnCredit(), time.Minute},
		} {
			p := spot{}
			if _, err := wait(tc.ctx, &p, []Request{tc.r}); err != nil {
				t.Fatal(name, err)
			}
			if got := p.asked[0]; !got.reserve || got.bounded != (tc.within >= 0) ||
				got.bounded && got.within != tc.within || got.credit != tc.r.credit {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if _, err := wait(ctx, &spot{}, []Request{apples.For("x").Within(-1)}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if _, err := wait(ctx, &spot{}, nil); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	})
}
