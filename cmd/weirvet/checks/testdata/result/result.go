package result

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/fair"
	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

var (
	ctx      context.Context
	tx       pgx.Tx
	pool     *pgxpool.Pool
	limiter  *ratelimit.Limiter
	auto     *ratelimit.Autocommit
	merged   *ratelimit.Coalesced
	open     *ratelimit.FailOpen
	lease    *ratelimit.Lease
	jobs     *scheduler.Jobs
	share    *fair.Limit
	request  ratelimit.Request
	requests []ratelimit.Request
	args     river.JobArgs

	errDenied = errors.New("denied")
)

// mine is what code asks for that need not know who answers.
type mine interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
}

// other has a verb's name, and answers something else.
type other interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (bool, error)
}

func dropped(limits mine, o other) error {
	if _, err := limiter.RateLimit(ctx, tx, request); err != nil { // want `the Result of RateLimit is dropped, and for a denial the error is nil: look at Result.OK, or call Consume`
		return err
	}
	_, err := auto.RateLimit(ctx, request) // want `look at Result.OK, or call Consume`
	if err != nil {
		return err
	}
	_, err = merged.RateLimit(ctx, requests...) // want `look at Result.OK, or call Consume`
	if err != nil {
		return err
	}
	if _, err := open.RateLimit(ctx, request); err != nil { // want `look at Result.OK, or call Consume`
		return err
	}
	if _, err := limiter.In(tx).RateLimit(ctx, request); err != nil { // want `look at Result.OK, or call Consume`
		return err
	}
	if _, err := limiter.InSQL(nil).RateLimit(ctx, request); err != nil { // want `look at Result.OK, or call Consume`
		return err
	}
	if _, err := limits.RateLimit(ctx, request); err != nil { // want `the Result of RateLimit is dropped, and for a denial the error is nil: look at Result.OK$`
		return err
	}
	if _, err := auto.RateLimit(ctx, request.OrReserve()); err != nil { // want `look at Result.OK$`
		return err
	}
	if _, err := share.RateLimit(ctx, auto, fair.Tenant{Key: "a"}, 1); err != nil { // want `the Result of RateLimit is dropped`
		return err
	}
	if _, err := lease.Take(ctx, 1); err != nil { // want `the Result of Take is dropped`
		return err
	}
	if _, err := lease.TakeInTx(ctx, tx, 1); err != nil { // want `the Result of TakeInTx is dropped`
		return err
	}
	if _, err := auto.CheckRateLimit(ctx, request); err != nil { // want `the Result of CheckRateLimit is dropped`
		return err
	}
	if _, err := limiter.SendBatch(ctx, pool, nil, request); err != nil { // want `the Result of SendBatch is dropped`
		return err
	}
	if _, _, err := limiter.RateLimitMany(ctx, tx, nil); err != nil { // want `the Result of RateLimitMany is dropped`
		return err
	}
	if _, err := jobs.InsertTx(ctx, tx, args, nil, request); err != nil { // want `the Result of InsertTx is dropped`
		return err
	}
	if _, err := jobs.InsertMany(ctx, pool, nil); err != nil { // want `the Result of InsertMany is dropped`
		return err
	}
	auto.RateLimit(ctx, request)                 // want `the Result of RateLimit is dropped`
	go auto.RateLimit(ctx, request)              // want `the Result of RateLimit is dropped`
	defer auto.RateLimit(ctx, request)           // want `the Result of RateLimit is dropped`
	var _, failed = auto.RateLimit(ctx, request) // want `the Result of RateLimit is dropped`

	if _, err := o.RateLimit(ctx, request); err != nil {
		return err
	}
	if _, err := auto.Wait(ctx, request); err != nil {
		return err
	}
	if _, err := limiter.Settle(ctx, tx, ratelimit.Reservation{}, request); err != nil {
		return err
	}
	_, each, err := limiter.RateLimitMany(ctx, tx, nil)
	if err != nil || len(each) == 0 {
		return err
	}
	_, _ = auto.RateLimit(ctx, request) // the code says so
	return failed
}

func neverAsked() error {
	res, err := limiter.RateLimit(ctx, tx, request) // want `the code never looks at res.OK: if RateLimit is denied, it is false and the error is nil`
	if err != nil {
		return err
	}
	time.Sleep(time.Until(res.RunAt))
	if _, err := limiter.Settle(ctx, tx, res.Reservation()); err != nil {
		return err
	}

	in, err := jobs.InsertTx(ctx, tx, args, nil, request) // want `the code never looks at in.OK`
	if err != nil {
		return err
	}
	use(in.Job.Job.ID)

	back, err := auto.RateLimit(ctx, request) // want `the code never looks at \w+.OK: if RateLimit`
	if err != nil {
		return err
	}
	return auto.GiveBack(ctx, back)
}

// The first answer is looked at, the second is not.
func twice() error {
	res, err := auto.RateLimit(ctx, request)
	if err != nil || !res.OK {
		return err
	}
	res, err = auto.RateLimit(ctx, requests...) // want `the code never looks at \w+.OK: if RateLimit`
	return err
}

// Whichever is assigned last is looked at.
func branches(a bool) error {
	var res ratelimit.Result
	var err error
	if a {
		res, err = auto.RateLimit(ctx, request)
	} else {
		res, err = merged.RateLimit(ctx, request)
	}
	if err != nil {
		return err
	}
	return res.Err()
}

func overwritten(a bool) error {
	res, err := auto.RateLimit(ctx, request) // want `the code never looks at \w+.OK: if RateLimit`
	if a {
		use(res.At)
	}
	res, err = merged.RateLimit(ctx, request)
	if err != nil {
		return err
	}
	return res.Err()
}

func retried() error {
	for {
		res, err := auto.RateLimit(ctx, request)
		if err == nil && res.OK {
			return nil
		}
	}
}

func untilGranted() (err error) {
	for res, err := auto.RateLimit(ctx, request); !res.OK; res, err = auto.RateLimit(ctx, request) {
		if err != nil {
			return err
		}
	}
	switch res, err := auto.RateLimit(ctx, request); err {
	case nil:
		switch {
		case res.OK:
			return nil
		}
	}
	return err
}

func lookedAtInTheNextRound() error {
	var res ratelimit.Result
	var err error
	for range 3 {
		if res.OK {
			return nil
		}
		if res, err = auto.RateLimit(ctx, request); err != nil {
			return err
		}
	}
	return nil
}

func bareReturn() (res ratelimit.Result, err error) {
	res, err = auto.RateLimit(ctx, request)
	return
}

func bareReturnOfACallback() (res ratelimit.Result, err error) {
	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		res, err = limiter.RateLimit(ctx, tx, request)
		return err
	})
	return
}

func lookedAtAfterTheCallback() error {
	var res ratelimit.Result
	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		res, err = limiter.RateLimit(ctx, tx, request)
		return err
	})
	if err != nil {
		return err
	}
	return res.Err()
}

func notLookedAtAfterTheCallback() error {
	var res ratelimit.Result
	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		res, err = limiter.RateLimit(ctx, tx, request) // want `the code never looks at \w+.OK: if RateLimit`
		return err
	})
	use(res.At)
	return err
}

func lookedAtByAClosure() error {
	res, err := auto.RateLimit(ctx, request)
	defer func() {
		if !res.OK {
			use("denied")
		}
	}()
	return err
}

func passedOn() (ratelimit.Result, error) {
	res, err := auto.RateLimit(ctx, request)
	if err != nil {
		return res, err
	}
	use(res)
	both(auto.RateLimit(ctx, request))
	return auto.RateLimit(ctx, request)
}

func said() {
	res, _ := auto.RateLimit(ctx, request)
	_ = res
}

type kept struct {
	res ratelimit.Result
	err error
}

var global ratelimit.Result

func stored(k *kept) error {
	k.res, k.err = auto.RateLimit(ctx, request)
	var err error
	global, err = auto.RateLimit(ctx, request)
	res, err := auto.RateLimit(ctx, request)
	p := &res
	use(p)
	return err
}

func asked() error {
	a, err := auto.RateLimit(ctx, request)
	if err != nil || !a.RetryAt.IsZero() {
		return err
	}
	b, err := auto.RateLimit(ctx, request)
	if err != nil || b.RetryAfter() > 0 {
		return err
	}
	c, err := auto.RateLimit(ctx, request)
	if err != nil || !c.Outcomes[0].OK {
		return err
	}
	d, err := jobs.InsertTx(ctx, tx, args, nil, request)
	if err != nil || d.Job == nil {
		return err
	}
	e, err := jobs.InsertTx(ctx, tx, args, nil, request)
	if err != nil {
		return err
	}
	if err := e.Err(); err != nil {
		return err
	}
	f, err := jobs.InsertManyTx(ctx, tx, nil)
	if err != nil || len(f.Jobs) == 0 {
		return err
	}
	switch g, err := lease.Take(ctx, 1); {
	case err != nil:
		return err
	case !g.OK:
		return errDenied
	}
	return nil
}

func aside(guard *lockout.Lockout, s *slots.Slots, slot slots.Request) error {
	if _, err := guard.Attempt(ctx, lockout.Who{}, nil); err != nil { // want `the first result of Attempt is dropped: for a wrong password it is false, and the error is nil`
		return err
	}
	if _, err := s.Acquire(ctx, slot); err != nil { // want `the Hold of Acquire is dropped: its slots are never released`
		return err
	}
	if ok, err := guard.Attempt(ctx, lockout.Who{}, nil); err != nil || !ok {
		return err
	}
	hold, err := s.TryAcquire(ctx, slot)
	if err != nil {
		return err
	}
	return hold.Release(ctx)
}

func use(any) {}

func both(ratelimit.Result, error) {}
