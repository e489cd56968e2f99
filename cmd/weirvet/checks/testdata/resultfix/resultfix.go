package resultfix

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

func dropped(ctx context.Context, tx pgx.Tx, limiter *ratelimit.Limiter, auto *ratelimit.Autocommit, rs ...ratelimit.Request) error {
	if _, err := limiter.RateLimit(ctx, tx, rs[0].Count(2)); err != nil { // want `call Consume`
		return err
	}
	_, err := auto.RateLimit(ctx, rs[0], rs[1]) // want `call Consume`
	if err != nil {
		return err
	}
	_, err = auto.RateLimit(ctx, rs...) // want `call Consume`
	return err
}
