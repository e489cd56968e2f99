// Package grace has contexts for what must be done even though, or even if, the caller's context
// ends.
package grace

import (
	"context"
	"time"
)

const period = 5 * time.Second

// Now returns a context that ends after five seconds, also if ctx has ended.
func Now(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), period)
}

// After returns a context that ends five seconds after ctx. It is for the second half of a change,
// which may have to wait for rows that others hold.
func After(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-longer.Done():
		case <-time.After(period):
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}
