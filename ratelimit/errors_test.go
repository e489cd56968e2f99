package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

func TestErrorMessagesAreReadable(t *testing.T) {
	t.Parallel()
	define := func(name string, rule ratelimit.Rule) error {
		_, err := ratelimit.Define(name, rule)
		return err
	}
	l := ratelimit.MustDefine("sendMessage", ratelimit.TokenBucket{Rate: 10, Period: time.Minute, MaxReserved: tok(5)})
	ask := func(r ratelimit.Request) error {
		_, err := ratelimit.Decide(r, ratelimit.State{}, t0)
		return err
	}
	denied := ratelimit.DeniedError{Limit: "sendMessage", Key: "user:7", At: t0, RetryAt: t0.Add(1500 * ms)}
	global, past, full := denied, denied, denied
	full.MaxReserved = 1200
	global.Key = ""
	past.RetryAt = t0.Add(-sec).In(time.FixedZone("there", 3600))

	for _, tc := range []struct {
		err  error
		want string
	}{
		{define("sendMessage", ratelimit.TokenBucket{Rate: -1, Period: sec}),
			`ratelimit: limit "sendMessage": Rate is -1: want a number of tokens above 0 and at most 2^53`},
		{define("sendMessage", ratelimit.FixedWindow{Rate: 1}),
			`ratelimit: limit "sendMessage": Period is 0s: want a duration of whole microseconds, at least one`},
		{define("sendMessage", ratelimit.FixedWindow{Rate: 1, Period: sec, Capacity: tok(nan)}),
			`ratelimit: limit "sendMessage": Capacity is NaN: want a number of tokens from 0 to 2^53, or unset for the Rate`},
		{define("sendMessage", ratelimit.TokenBucket{Rate: 1, Period: 24 * time.Hour, Capacity: tok(1e7)}),
			`ratelimit: limit "sendMessage": Capacity is 1e+07: want one that fills within five thousand years; at 1 tokens in 24h0m0s this takes longer`},
		{define("sendMessage", ratelimit.TokenBucket{Rate: 1, Period: sec, MaxReserved: tok(-2)}),
			`ratelimit: limit "sendMessage": MaxReserved is -2: want a number of tokens from 0 to 2^53, or unset for no bound`},
		{define("sendMessage", ratelimit.TokenBucket{Rate: 1, Period: 24 * time.Hour, MaxReserved: tok(1e6)}),
			`ratelimit: limit "sendMessage": MaxReserved is 1e+06: want a debt that is repaid within a thousand years; at 1 tokens in 24h0m0s this takes longer`},
		{define("sendMessage", ratelimit.FixedWindow{Rate: 1, Period: sec,
			Start: time.Date(12_000, 1, 1, 0, 0, 0, 0, time.UTC)}),
			`ratelimit: limit "sendMessage": Start is 12000-01-01 00:00:00 +0000 UTC: want a year from 1 to 9999`},
		{define("sendMessage", nil),
			`ratelimit: limit "sendMessage": rule is <nil>: want a TokenBucket or a FixedWindow`},
		{define("", plain),
			`ratelimit: name is "": want 1 to 255 bytes of UTF-8 without NUL: it is empty`},
		{define("a\x00b", plain),
			`ratelimit: limit "a\x00b": name is "a\x00b": want 1 to 255 bytes of UTF-8 without NUL: it has a NUL`},
		{ask(l.For("")),
			`ratelimit: limit "sendMessage": key is "": want 1 to 1024 bytes of UTF-8 without NUL: it is empty; Limit.Global is for limits without keys`},
		{ask(l.For("user\xff")),
			`ratelimit: limit "sendMessage": key is "user\xff": want 1 to 1024 bytes of UTF-8 without NUL: it is not UTF-8`},
		{ask(l.For("user:7").Count(-3)),
			`ratelimit: limit "sendMessage": count is -3: want 0 or more tokens`},
		{ask(l.For("user:7").Count(11)),
			`ratelimit: limit "sendMessage": count 11 can never be granted: want at most the capacity of 10, or OrReserve`},
		{ask(l.For("user:7").Count(16).OrReserve()),
			`ratelimit: limit "sendMessage": count 16 can never be granted: want at most 15: the capacity of 10 plus the MaxReserved of 5`},
		{ask(l.For("user:7").Count(1e-15)),
			`ratelimit: limit "sendMessage": count is 1e-15: want 0, or at least a 2^40th of the capacity of 10: less would be lost in rounding`},
		{&denied,
			`ratelimit: limit "sendMessage" for "user:7" denied: retry after 1.5s, at 2024-03-01T12:00:01.5Z`},
		{&global,
			`ratelimit: limit "sendMessage" denied: retry after 1.5s, at 2024-03-01T12:00:01.5Z`},
		{&past,
			`ratelimit: limit "sendMessage" for "user:7" denied: retry after 0s, at 2024-03-01T11:59:59Z`},
		{&full,
			`ratelimit: limit "sendMessage" for "user:7" denied: more than its MaxReserved of 1200 would be owed: retry after 1.5s, at 2024-03-01T12:00:01.5Z`},
		{&ratelimit.ConflictError{Attempts: 50, Err: errors.New("could not serialize access")},
			`ratelimit: gave up after attempt 50, as each conflicted with another transaction: could not serialize access`},
		{&ratelimit.InvalidError{Field: "key", Value: 7, Want: "text"}, `ratelimit: key is 7: want text`},
	} {
		if tc.err == nil || tc.err.Error() != tc.want {
			t.Errorf("got  %v\nwant %s", tc.err, tc.want)
		}
	}
}

func TestMessagesShortenLongNamesAndKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 100)
	for _, err := range []error{
		&ratelimit.DeniedError{Limit: "limit", Key: long, At: t0, RetryAt: t0.Add(sec)},
		&ratelimit.InvalidError{Limit: long, Field: "count", Value: -1.0, Want: "more"},
	} {
		if text := err.Error(); len(text) > 250 || !strings.Contains(text, `0123...`) {
			t.Error(text)
		}
	}
}

func TestErrorsMatchTheirSentinelsAndNoOther(t *testing.T) {
	t.Parallel()
	sentinels := []error{ratelimit.ErrDenied, ratelimit.ErrInvalid, ratelimit.ErrNeverGranted, ratelimit.ErrNoDecision,
		ratelimit.ErrConflict, ratelimit.ErrOutcomeUnknown, ratelimit.ErrNested, io.EOF, context.Canceled}
	never := func() error {
		_, err := ratelimit.Decide(define(t, plain).For("key").Count(99), ratelimit.State{}, t0)
		return err
	}()
	for _, tc := range []struct {
		err  error
		want []error
	}{
		{&ratelimit.DeniedError{}, []error{ratelimit.ErrDenied}},
		{&ratelimit.InvalidError{}, []error{ratelimit.ErrInvalid}},
		{never, []error{ratelimit.ErrInvalid, ratelimit.ErrNeverGranted}},
		{&ratelimit.ConflictError{Err: io.EOF}, []error{ratelimit.ErrConflict, io.EOF}},
		{ratelimit.Result{}.Err(), []error{ratelimit.ErrNoDecision}},
		{ratelimit.Result{RetryAt: t0}.Err(), []error{ratelimit.ErrDenied}},
	} {
		for _, err := range []error{tc.err, fmt.Errorf("wrapped: %w", tc.err)} {
			for _, s := range sentinels {
				want := false
				for _, w := range tc.want {
					want = want || w == s //nolint:errorlint // itself
				}
				if errors.Is(err, s) != want {
					t.Errorf("errors.Is(%v, %v) is %v", err, s, !want)
				}
			}
		}
	}
}

func TestErrorsCarryTheirDataThroughWrapping(t *testing.T) {
	t.Parallel()
	cause := errors.New("could not serialize access")
	err := fmt.Errorf("handler: %w", &ratelimit.ConflictError{Attempts: 3, Err: cause})
	var conflict *ratelimit.ConflictError
	if !errors.As(err, &conflict) || conflict.Attempts != 3 || !errors.Is(err, cause) {
		t.Errorf("%+v", conflict)
	}
	err = fmt.Errorf("handler: %w", ratelimit.Result{Limit: "l", Key: "k", At: t0, RetryAt: t0.Add(sec)}.Err())
	var denied *ratelimit.DeniedError
	if !errors.As(err, &denied) || denied.Limit != "l" || denied.Key != "k" || denied.RetryAfter() != sec {
		t.Errorf("%+v", denied)
	}
	_, err = ratelimit.Define("x", ratelimit.TokenBucket{Rate: -2, Period: sec})
	var invalid *ratelimit.InvalidError
	if !errors.As(fmt.Errorf("handler: %w", err), &invalid) || invalid.Limit != "x" ||
		invalid.Field != "Rate" || invalid.Value != -2.0 {
		t.Errorf("%+v", invalid)
	}
}
