// Package worknow has tests work River jobs when they say so: weirtest asks for it in a context,
// and scheduler obeys. Neither imports the other.
package worknow

import "context"

type key struct{}

// With returns a context in which jobs are worked now.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Asked reports whether a job is to be worked now, due or not.
func Asked(ctx context.Context) bool { return ctx.Value(key{}) != nil }
