package weirtest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

var ModelTokens = ratelimit.MustDefine("modelTokens",
	ratelimit.TokenBucket{Rate: 10_000, Period: time.Hour})

// Model calls a model, and returns how many tokens the call has used.
type Model func(ctx context.Context, prompt string) (answer string, used int64, err error)

// Ask is code under test. In production limits is a *ratelimit.Coalesced.
func Ask(
	ctx context.Context, limits ratelimit.Verbs, model Model, org, prompt string,
) (string, error) {
	tokens := ModelTokens.For(org)
	res, err := limits.RateLimit(ctx, tokens.Count(2000)) // an estimate
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return "", err
	}
	answer, used, err := model(ctx, prompt)
	if err != nil {
		_, failed := limits.Release(ctx, res.Reservation())
		return "", errors.Join(err, failed)
	}
	_, err = limits.Settle(ctx, res.Reservation(), tokens.CountInt(used))
	return answer, err
}

// A function that takes any ratelimit.Verbs can be tested without a database, also if it settles.
func ExampleLimiter_Settle() {
	ctx := context.Background()
	limits := &weirtest.Limiter{Clock: new(weirtest.Clock)}
	ask := func(model Model) {
		answer, err := Ask(ctx, limits, model, "acme", "Why is the sky blue?")
		fmt.Printf("%q, %v\n", answer, err)
		s, err := limits.Value(ctx, ModelTokens.For("acme"))
		fmt.Println(s.Value, "left,", err)
	}

	ask(func(context.Context, string) (string, int64, error) { return "It scatters.", 700, nil })
	ask(func(context.Context, string) (string, int64, error) { return "", 0, errors.New("busy") })
	limits.Set(ModelTokens.For("acme"), 100)
	ask(nil) // is not called

	for _, call := range limits.Calls() {
		switch call.Verb {
		case "Settle", "Release":
			fmt.Println(call.Verb, call.Requests, call.Settled)
		}
	}
	// Output:
	// "It scatters.", <nil>
	// 9300 left, <nil>
	// "", busy
	// 9300 left, <nil>
	// "", ratelimit: limit "modelTokens" for "acme" denied: retry after 11m24s, at 2026-01-01T12:11:24Z
	// 100 left, <nil>
	// Settle [700 of modelTokens for "acme"] true
	// Release [] true
}
