package rpclimit

import (
	"context"
	"slices"
	"strings"

	"github.com/weir-go/weir/ratelimit"
)

// Call is what is known of a call before its handler runs. An adapter makes it.
type Call struct {
	// Procedure is "/package.Service/Method", as in the constants that code generators make.
	Procedure string

	// Address is where the connection comes from, as the library reports it, for example
	// "203.0.113.7:4711".
	Address string

	// Header returns the values of a metadata key. Upper and lower case are the same.
	Header func(name string) []string

	// Message is the request of a unary call. It is nil for every kind of stream, whose
	// interceptors run before the first message is read.
	Message any
}

// Ask returns what a call takes from which limits. If it returns none, the call is not limited.
// [By] and [Global] make an Ask from a limit, and Cost, Rule, Unless and Only change it. For
// anything else write your own function, for example if it has to look up a plan, which may fail:
//
//	func byPlan(ctx context.Context, _ *rpclimit.Call) ([]ratelimit.Request, error) {
//		plan, err := planOf(ctx, userOf(ctx))
//		return []ratelimit.Request{PerUser.For(userOf(ctx)).Rule(plan)}, err
//	}
//
// If it returns an error, the call is refused: with PermissionDenied if the error matches
// [ErrNoKey], with the error itself if it has a status already (a gRPC status in a gRPC server, a
// *connect.Error in Connect), and otherwise as [Guard.Answer] says. It is called once per call,
// from many goroutines at a time. It must not change the Call, nor keep it.
type Ask func(ctx context.Context, call *Call) ([]ratelimit.Request, error)

// By asks for one token of the limit, for the key of the call. Keys go through [Good]. A call
// without a key is refused.
func By(limit ratelimit.Limit, key Key) Ask {
	return func(ctx context.Context, call *Call) ([]ratelimit.Request, error) {
		if key == nil {
			return nil, &ratelimit.InvalidError{Limit: limit.Name(), Field: "Key", Value: nil,
				Want: "a Key, or Global in place of By"}
		}
		k, err := key(ctx, call)
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
	return func(context.Context, *Call) ([]ratelimit.Request, error) {
		return []ratelimit.Request{limit.Global()}, nil
	}
}

// Cost asks for as many tokens as the call costs, instead of one. 0 is granted while nothing is
// owed. A call that costs more than the limit could ever grant is refused with InvalidArgument, so
// bound what clients may ask for.
//
// Check the type of Call.Message: for a stream it is nil, and a panic ends a gRPC server.
func (a Ask) Cost(tokens func(ctx context.Context, call *Call) float64) Ask {
	return func(ctx context.Context, call *Call) ([]ratelimit.Request, error) {
		requests, err := a(ctx, call)
		if err != nil || len(requests) == 0 {
			return nil, err
		}
		requests = slices.Clone(requests) // a may return the same ones to all
		n := tokens(ctx, call)
		for i := range requests {
			requests[i] = requests[i].Count(n)
		}
		return requests, nil
	}
}

// Rule uses another rule than the limit's own, for example that of the customer's plan: see
// [ratelimit.Request.Rule]. If it returns nil, the limit's own rule counts. It is called once the
// call is known to have a key.
func (a Ask) Rule(rule func(ctx context.Context, call *Call) ratelimit.Rule) Ask {
	return func(ctx context.Context, call *Call) ([]ratelimit.Request, error) {
		requests, err := a(ctx, call)
		if err != nil || len(requests) == 0 {
			return nil, err
		}
		requests = slices.Clone(requests)
		by := rule(ctx, call)
		for i := range requests {
			requests[i] = requests[i].Rule(by)
		}
		return requests, nil
	}
}

// Unless does not limit calls for which skip returns true. They need no key.
func (a Ask) Unless(skip func(ctx context.Context, call *Call) bool) Ask {
	return func(ctx context.Context, call *Call) ([]ratelimit.Request, error) {
		if skip(ctx, call) {
			return nil, nil
		}
		return a(ctx, call)
	}
}

// Only limits the named procedures and no others: "/package.Service/Method", or "/package.Service/"
// for all of a service. If a name has another form, every call is refused with Internal, because a
// misspelt name would limit nothing.
func (a Ask) Only(procedures ...string) Ask {
	wrong, bad := "", len(procedures) == 0
	exact, services := map[string]bool{}, map[string]bool{}
	for _, p := range procedures {
		service, method, ok := cut(p)
		switch {
		case !ok:
			wrong, bad = p, true
		case method == "":
			services[service] = true
		default:
			exact[p] = true
		}
	}
	return func(ctx context.Context, call *Call) ([]ratelimit.Request, error) {
		if bad {
			return nil, &ratelimit.InvalidError{Field: "procedure of Only", Value: wrong,
				Want: `"/package.Service/Method", or "/package.Service/" for all of a service`}
		}
		service, _, _ := cut(call.Procedure)
		if !exact[call.Procedure] && !services[service] {
			return nil, nil
		}
		return a(ctx, call)
	}
}

// cut splits "/service/method". The method is empty in the name of a whole service.
func cut(procedure string) (service, method string, ok bool) {
	rest, slash := strings.CutPrefix(procedure, "/")
	service, method, ok = strings.Cut(rest, "/")
	return service, method, ok && slash && service != "" && !strings.Contains(method, "/")
}
