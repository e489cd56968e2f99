package httplimit

import (
	"net/http"

	"github.com/weir-go/weir/ratelimit"
)

// Ask tells what a request to a route asks of which limits: of none, if it is not to be limited. [By] and [Global] make one out of
// a limit, and Cost and Unless change it. Whatever they do not cover is a function of your own: a customer's plan by
// [ratelimit.Request.Rule], say.
//
//	func byPlan(r *http.Request) ([]ratelimit.Request, error) {
//		user := userOf(r)
//		return []ratelimit.Request{PerUser.For(user.ID).Rule(user.Plan)}, nil
//	}
//
// Its error refuses the request: with 403 if it matches [ErrNoKey], else with 503, but as [Guard.Pass] says for those of package
// ratelimit. It is called once a request, by many goroutines at a time.
type Ask func(*http.Request) ([]ratelimit.Request, error)

// By asks for one token of the limit, for the key of the request. Each key is made good by [Good]; a request without one is
// refused.
func By(limit ratelimit.Limit, key Key) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		if key == nil {
			return nil, &ratelimit.InvalidError{Limit: limit.Name(), Field: "Key", Value: nil, Want: "a Key, or Global in place of By"}
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
	return func(*http.Request) ([]ratelimit.Request, error) { return []ratelimit.Request{limit.Global()}, nil }
}

// Cost asks for as many tokens as the request costs, in place of one. 0 is granted while nothing is owed. What costs more than the
// limit could ever grant is refused with 400, so bound what clients may ask for where that is not meant.
func (a Ask) Cost(tokens func(*http.Request) float64) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		requests, err := a(r)
		if err != nil || len(requests) == 0 {
			return nil, err
		}
		n := tokens(r)
		for i := range requests {
			requests[i] = requests[i].Count(n)
		}
		return requests, nil
	}
}

// Unless asks nothing for requests that skip picks. Their key is not looked for.
func (a Ask) Unless(skip func(*http.Request) bool) Ask {
	return func(r *http.Request) ([]ratelimit.Request, error) {
		if skip(r) {
			return nil, nil
		}
		return a(r)
	}
}
