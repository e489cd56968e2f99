package ratelimit

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Consume is [Limiter.RateLimit] for callers that need no [Result]. It returns nil if the requests
// were granted, and their work may start now. If they were denied it returns a [*DeniedError],
// which matches [ErrDenied] and says when to come again. Any other error is one of RateLimit's.
//
//	if err := limiter.Consume(ctx, tx, Uploads.For(user)); err != nil {
//		return err // rolls back: nothing was taken, nothing was written
//	}
//
// A request that may be granted for later, by [Request.OrReserve] or [Request.Within], is refused
// with an error that matches [ErrInvalid], before anything is sent: nil could not say when the work
// may start. A request of a [Shadow] is never denied.
func (l *Limiter) Consume(ctx context.Context, tx pgx.Tx, requests ...Request) error {
	return l.in(tx).Consume(ctx, requests...)
}

// Consume is [Limiter.Consume], committed when it returns.
func (a *Autocommit) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return a.RateLimit(ctx, requests...) })
}

// Consume is [Limiter.Consume], decided together with other calls and committed when it returns.
func (c *Coalesced) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return c.RateLimit(ctx, requests...) })
}

// Consume is [Limiter.Consume] of the Limiter. It returns nil, too, for a call that is let through
// in an outage.
func (f *FailOpen) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return f.RateLimit(ctx, requests...) })
}

func consume(requests []Request, take func() (Result, error)) error {
	for _, r := range requests {
		if r.Reserves() {
			return &InvalidError{Limit: r.Limit().Name(), Field: "request",
				Value: plain(r.String()),
				Want:  "one without OrReserve or Within: use RateLimit, whose Result says when the work may start"}
		}
	}
	res, err := take()
	if err != nil {
		return err
	}
	return res.Err()
}
