package httplimit

import (
	"net/http"
	"slices"

	"github.com/weir-go/weir/ratelimit"
)

// Ask returns what an HTTP request takes from which limits. If it returns none, the request is not
// limited. [By] and [Global] make an Ask from a limit, and Cost, Rule and Unless change it. For
// anything else write your own function, for example if it has to look up a plan, which may fail:
//
//	func byPlan(r *http.Request) ([]ratelimit.Request, error) {
//		user := userOf(r)
//		if user == "" {
//			return nil, httplimit.ErrNoKey
//		}
//		plan, err := planOf(r.Context(), user)
//		return []ratelimit.Request{PerUser.For(httplimit.Good(user)).Rule(plan)}, err
//	}
//
// Its error refuses the request: with 403 if it matches [ErrNoKey], as [Guard.Pass] says for errors
// of package ratelimit, and otherwise with 503. It is called once per request, from many goroutines
// at a time.
type Ask func(*http.Request) ([]ratelimit.Request, error)

// By asks for one token of the limit, for the key of the request. Keys go through [Good]. A request
// without a key is refused.
func By(limit ratelimit.Limit, key Key) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		if key == nil {
			return nil, &ratelimit.InvalidError{Limit: limit.Name(), Field: "Key", Value: nil,
				Want: "a Key, or Global in place of By"}
		}
		k, err := key(r)
		if err != nil {
			return nil, err
		}
		if k == "" {
			return nil, ErrNoKey
		}
		return []ratelimit.Request{limit.For(Good(k))}, nil
	}
}

// Global asks for one token of a limit without keys.
func Global(limit ratelimit.Limit) Ask {
	return func(*http.Request) ([]ratelimit.Request, error) {
		return []ratelimit.Request{limit.Global()}, nil
	}
}

// Cost asks for as many tokens as the request costs, instead of one. 0 is granted while nothing is
// owed. A request that costs more than the limit could ever grant is refused with 400.
func (a Ask) Cost(tokens func(*http.Request) float64) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		requests, err := a(r)
		if err != nil || len(requests) == 0 {
			return nil, err
		}
		requests = slices.Clone(requests) // a may return the same ones to all
		n := tokens(r)
		for i := range requests {
			requests[i] = requests[i].Count(n)
		}
		return requests, nil
	}
}

// Rule uses another rule than the limit's own, for example that of the customer's plan: see
// [ratelimit.Request.Rule]. If it returns nil, the limit's own rule counts. It is called once the
// request is known to have a key.
//
//	perUser := httplimit.By(API, httplimit.ByUser(userOf)).Rule(planOf)
func (a Ask) Rule(rule func(*http.Request) ratelimit.Rule) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		requests, err := a(r)
		if err != nil || len(requests) == 0 {
			return nil, err
		}
		requests = slices.Clone(requests)
		by := rule(r)
		for i := range requests {
			requests[i] = requests[i].Rule(by)
		}
		return requests, nil
	}
}

// Unless does not limit requests for which skip returns true. They need no key.
func (a Ask) Unless(skip func(*http.Request) bool) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		if skip(r) {
			return nil, nil
		}
		return a(r)
	}
}
