package runat

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/fair"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

var (
	ctx     context.Context
	tx      pgx.Tx
	limiter *ratelimit.Limiter
	auto    *ratelimit.Autocommit
	jobs    *scheduler.Jobs
	share   *fair.Limit
	request ratelimit.Request
)

func ignored(d time.Duration) error {
	res, err := limiter.RateLimit(ctx, tx, request.OrReserve()) // want `the code never looks at res.RunAt: the request may be granted for later, and the work must not run before`
	if err != nil || !res.OK {
		return err
	}
	work()

	again, err := auto.RateLimit(ctx, request, request.Count(3).Within(d).Count(4)) // want `the code never looks at \w+.RunAt`
	if err != nil {
		return err
	}
	if err := again.Err(); err != nil {
		return err
	}
	work()

	r := request.Count(5).OrReserve()
	if res, err := auto.RateLimit(ctx, r); err != nil || !res.OK { // want `the code never looks at \w+.RunAt`
		return err
	}
	rs := []ratelimit.Request{request, request.OrReserve()}
	if res, err := auto.RateLimit(ctx, rs...); err != nil || !res.OK { // want `the code never looks at \w+.RunAt`
		return err
	}
	other, err := share.RateLimit(ctx, auto, fair.Tenant{}, 1, request.OrReserve()) // want `the code never looks at \w+.RunAt`
	if err != nil || !other.OK {
		return err
	}
	defer func() { _, _ = auto.Settle(ctx, other.Reservation()) }()
	work()
	return nil
}

func refused() error {
	if err := limiter.Consume(ctx, tx, request.OrReserve()); err != nil { // want `Consume refuses a request that may be granted for later`
		return err
	}
	if err := auto.Consume(ctx, request, request.Within(time.Second)); err != nil { // want `Consume refuses a request that may be granted for later`
		return err
	}
	return auto.Consume(ctx, request.Within(0), request.OnCredit())
}

func waits(rs []ratelimit.Request) error {
	res, err := limiter.RateLimit(ctx, tx, request.OrReserve())
	if err != nil || !res.OK {
		return err
	}
	time.Sleep(time.Until(res.RunAt))
	work()

	paced, err := limiter.RateLimit(ctx, tx, request.OrReserve())
	if err != nil || !paced.OK {
		return err
	}
	time.Sleep(time.Until(paced.Outcomes[0].PacedAt))

	stored, err := limiter.RateLimit(ctx, tx, request.OrReserve())
	if err != nil || !stored.OK {
		return err
	}
	keep(stored.Reservation())

	now, err := auto.RateLimit(ctx, request.Within(0))
	if err != nil || !now.OK {
		return err
	}
	unknown, err := auto.RateLimit(ctx, rs...)
	if err != nil || !unknown.OK {
		return err
	}
	check, err := auto.CheckRateLimit(ctx, request.OrReserve())
	if err != nil || !check.OK {
		return err
	}
	in, err := jobs.InsertTx(ctx, tx, nil, nil, request.OrReserve())
	if err != nil {
		return err
	}
	if err := in.Err(); err != nil {
		return err
	}
	_, err = auto.Wait(ctx, request.OrReserve())
	return err
}

func changed(a bool) error {
	r := request.OrReserve()
	if a {
		r = request
	}
	res, err := auto.RateLimit(ctx, r)
	if err != nil || !res.OK {
		return err
	}
	return nil
}

func work() {}

func keep(ratelimit.Reservation) {}
