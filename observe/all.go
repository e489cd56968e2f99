package observe

import (
	"context"

	"github.com/weir-go/weir/ratelimit"
)

// All returns an observer that calls all of these, in order. Nil observers are left out.
func All(observers ...ratelimit.Observer) ratelimit.Observer {
	var a all
	for _, o := range observers {
		if o != nil {
			a = append(a, o)
		}
	}
	return a
}

type all []ratelimit.Observer

func (a all) Decided(ctx context.Context, e ratelimit.DecidedEvent) {
	for _, o := range a {
		o.Decided(ctx, e)
	}
}

func (a all) Transacted(ctx context.Context, e ratelimit.TransactedEvent) {
	for _, o := range a {
		o.Transacted(ctx, e)
	}
}
