package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

func TestZeroConfigIsReady(t *testing.T) {
	t.Parallel()
	if l, err := ratelimit.New(ratelimit.Config{}); l == nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}

func TestBadConfigsAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cfg   ratelimit.Config
		field string
	}{
		{ratelimit.Config{Schema: "a\x00b"}, "Config.Schema"},
		{ratelimit.Config{Schema: "\xff"}, "Config.Schema"},
		{ratelimit.Config{Schema: strings.Repeat("x", 64)}, "Config.Schema"}, // Postgres would cut it off
		{ratelimit.Config{MaxAttempts: -1}, "Config.MaxAttempts"},
	} {
		l, err := ratelimit.New(tc.cfg)
		var invalid *ratelimit.InvalidError
		if l != nil || !errors.As(err, &invalid) || invalid.Field != tc.field {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
	}
}

// untouchable is a transaction that panics when anything is asked of it.
type untouchable struct{ pgx.Tx }

// Nothing is sent before all requests were found to be good, so a bad one does not cost the
// caller's transaction.
func TestBadCallsAreRefusedBeforeTheTransactionIsTouched(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, l := context.Background(), define(t, plain)
	other := ratelimit.MustDefine("other", plain)
	good := l.For("key")
	for name, requests := range map[string][]ratelimit.Request{
		"no request":                      {},
		"zero request":                    {{}},
		"no key":                          {l.For("")},
		"bad count":                       {l.For("key").Count(nan)},
		"bad count on credit":             {l.For("key").Count(-1).OnCredit()},
		"never granted":                   {l.For("key").Count(11)},
		"never granted with reserve":      {l.For("key").Count(inf).OrReserve()},
		"bad rule":                        {l.For("key").Rule(ratelimit.TokenBucket{})},
		"one of several":                  {other.For("key"), good.Count(-1)},
		"two rules for one balance":       {good, good.Rule(ratelimit.TokenBucket{Rate: 11, Period: sec})},
		"OrReserve in one of two":         {good, other.Global(), good.OrReserve()},
		"never granted when added up":     {good.Count(6), other.Global(), good.Count(6)},
		"added up to more than a float64": {good.Count(1e308).OrReserve(), good.Count(1e308).OrReserve()},
	} {
		verbs := map[string]error{
			"RateLimit":      errOf(limiter.RateLimit(ctx, untouchable{}, requests...)),
			"CheckRateLimit": errOf(limiter.CheckRateLimit(ctx, untouchable{}, requests...)),
		}
		switch name {
		case "no request", "zero request", "no key", "bad rule", "two rules for one balance":
			// counts do not matter to it
			verbs["ResetRateLimit"] = limiter.ResetRateLimit(ctx, untouchable{}, requests...)
		}
		for verb, err := range verbs {
			if !errors.Is(err, ratelimit.ErrInvalid) {
				t.Errorf("%s of %s: %v", verb, name, err)
			}
			if never := strings.HasPrefix(name, "never"); errors.Is(err,
				ratelimit.ErrNeverGranted) != never && !strings.HasPrefix(name, "added") {
				t.Errorf("%s of %s: %v", verb, name, err)
			}
		}
	}
	if _, err := limiter.Value(ctx, untouchable{}, l.For("")); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("Value: %v", err)
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestCallsWithoutATransactionAreRefused(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, r := context.Background(), define(t, plain).For("key")
	none := limiter.Autocommit(nil)
	granted := ratelimit.Result{OK: true, At: t0}
	for name, call := range map[string]func() error{
		"RateLimit":                 func() error { return errOf(limiter.RateLimit(ctx, nil, r)) },
		"CheckRateLimit":            func() error { return errOf(limiter.CheckRateLimit(ctx, nil, r)) },
		"ResetRateLimit":            func() error { return limiter.ResetRateLimit(ctx, nil, r) },
		"Value":                     func() error { return errOf(limiter.Value(ctx, nil, r)) },
		"GiveBack":                  func() error { return limiter.GiveBack(ctx, nil, granted) },
		"InSQL.RateLimit":           func() error { return errOf(limiter.InSQL(nil).RateLimit(ctx, r)) },
		"InSQL.CheckRateLimit":      func() error { return errOf(limiter.InSQL(nil).CheckRateLimit(ctx, r)) },
		"InSQL.ResetRateLimit":      func() error { return limiter.InSQL(nil).ResetRateLimit(ctx, r) },
		"InSQL.Value":               func() error { return errOf(limiter.InSQL(nil).Value(ctx, r)) },
		"InSQL.GiveBack":            func() error { return limiter.InSQL(nil).GiveBack(ctx, granted) },
		"Autocommit.RateLimit":      func() error { return errOf(none.RateLimit(ctx, r)) },
		"Autocommit.CheckRateLimit": func() error { return errOf(none.CheckRateLimit(ctx, r)) },
		"Autocommit.ResetRateLimit": func() error { return none.ResetRateLimit(ctx, r) },
		"Autocommit.Value":          func() error { return errOf(none.Value(ctx, r)) },
		"Autocommit.GiveBack":       func() error { return none.GiveBack(ctx, granted) },
		"InTx":                      func() error { return limiter.InTx(ctx, nil, nil) },
	} {
		if err := noPanic(t, name, call); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Result that was built by hand, or came back from JSON, cannot say what was taken.
func TestGivingBackAResultOfUnknownOriginIsRefused(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]ratelimit.Result{
		"zero":                  {},
		"granted, no outcomes":  {OK: true, At: t0},
		"granted, from outside": {OK: true, At: t0, Outcomes: []ratelimit.Outcome{{Limit: "limit", Key: "key", OK: true}}},
	} {
		if err := noPanic(t, name, func() error {
			return limiter.GiveBack(context.Background(), untouchable{}, r)
		}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	denied := ratelimit.Result{At: t0, RetryAt: t0.Add(sec), Outcomes: []ratelimit.Outcome{{Limit: "limit"}}}
	if err := limiter.GiveBack(context.Background(), untouchable{}, denied); err != nil {
		t.Errorf("denied: %v", err)
	}
}

func noPanic(t *testing.T, name string, call func() error) (err error) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s panics: %v", name, r)
		}
	}()
	return call()
}

// nesting is a Beginner that cannot be compared, though its type can.
type nesting struct{ begin any }

func (n nesting) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	return nil, n.begin.(func(context.Context) error)(ctx)
}

func TestABeginnerThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	oops, began := errors.New("oops"), 0
	var db nesting
	db.begin = func(ctx context.Context) error {
		if began++; began == 2 {
			return oops
		}
		return l.InTx(ctx, db, nil)
	}
	if err := l.InTx(t.Context(), db, nil); !errors.Is(err, oops) || began != 2 {
		t.Errorf("it began %d times: %v", began, err)
	}
}
