package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/grace"
)

// Wait takes what the requests ask for, from all of them or from none, and returns when the work
// may run: [Result.OK], and no error. An error always means that it must not run.
//
//	if _, err := auto.Wait(ctx, PartnerAPI.For(tenant)); err != nil {
//		return err
//	}
//	resp, err := client.Do(req)
//
// It reserves, as with [Request.OrReserve], and sleeps until RunAt. So callers go in the order in
// which they came, over all processes, and small requests do not starve large ones. Before it
// returns it looks at the limits again: if a pause or a settlement has delayed its turn meanwhile,
// it waits on. If its turn has moved up, it still waits until the original RunAt. It never returns
// before the database's clock has reached RunAt.
//
// If ctx has a deadline, it reserves [Request.Within] the time that is left, unless the request has
// a shorter one. If the call would have to wait longer, or MaxReserved denies it, Wait returns at
// once with the Result and its [*DeniedError], and nothing is taken. If the count could not flow in
// before the deadline even if the limit is full, the error matches [context.DeadlineExceeded].
//
// If ctx ends while it waits, its tokens are given back, which takes up to 5 seconds, and the error
// matches that of ctx. Callers behind it keep their turns: see [Limiter.Release]. Other errors are
// those of RateLimit.
//
// Without a deadline it waits for its turn however long that takes, and for the database no longer
// than Config.Timeout.
//
// A waiting call holds no connection, and costs two round trips in all, or one if the tokens were
// there. If the process ends while a call waits, the call's tokens stay taken.
func (a *Autocommit) Wait(ctx context.Context, requests ...Request) (Result, error) {
	return wait(ctx, a, requests)
}

// line is what Wait needs: Autocommit and Coalesced have it.
type line interface {
	RateLimit(ctx context.Context, requests ...Request) (Result, error)
	GiveBack(ctx context.Context, res Result) error

	// left returns how much longer the work of a granted call has to wait, by the present state of
	// its limits.
	left(ctx context.Context, res Result) (time.Duration, error)
}

func wait(ctx context.Context, l line, requests []Request) (Result, error) {
	patient, err := inTimeFor(ctx, requests)
	if err != nil {
		return Result{}, err
	}
	res, err := l.RateLimit(ctx, patient...)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return res, err
	}
	for left := res.RunAt.Sub(res.At); left > 0; { // the zero RunAt is long ago
		if err = sleep(ctx, left); err != nil {
			err = fmt.Errorf("ratelimit: wait for limit %q: %w", res.Limit, err)
		} else {
			left, err = l.left(ctx, res)
		}
		if err == nil {
			continue
		}
		ctx, cancel := grace.Now(ctx)
		defer cancel()
		if failed := l.GiveBack(ctx, res); failed != nil {
			err = fmt.Errorf("%w; its tokens could not be given back: %w", err, failed)
		}
		return Result{}, err
	}
	return res, nil
}

// inTimeFor returns the requests of a caller that can wait until ctx ends.
func inTimeFor(ctx context.Context, requests []Request) ([]Request, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("ratelimit: wait: %w", err)
	}
	patient := slices.Clone(requests)
	for i := range patient {
		patient[i] = patient[i].OrReserve()
	}
	if _, err := resolveAll(patient); err != nil {
		return nil, err
	}
	end, ends := ctx.Deadline()
	if !ends {
		return patient, nil
	}
	left := max(0, time.Until(end))
	for i, r := range patient {
		if !r.bounded || left < r.within {
			patient[i] = r.Within(left)
		}
	}
	var invalid *InvalidError
	if _, err := resolveAll(patient); errors.As(err, &invalid) {
		return nil,
			fmt.Errorf("ratelimit: wait for limit %q: a count of %v does not flow in within %v: %w",
				invalid.Limit, invalid.Value, left, context.DeadlineExceeded)
	}
	return patient, nil
}

// sleep sleeps for d. If the deadline of ctx would come first, it returns at once.
func sleep(ctx context.Context, d time.Duration) error {
	if end, ends := ctx.Deadline(); ends && time.Until(end) < d {
		return context.DeadlineExceeded
	}
	return rest(ctx, d)
}

// rest sleeps for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Autocommit) left(ctx context.Context, res Result) (time.Duration, error) {
	rows, err := res.taken()
	if err != nil {
		return 0, err
	}
	calls := callsOf(enforced(rows))
	looks := forEach(calls, a.l.lookOf) // at the rows taken from: work waits in a single shard
	x := a.l.perTrip(a.pool, time.Now())
	if err := x.run(ctx, looks); err != nil {
		return 0, explain(ctx, err, "look at", calls)
	}
	left := time.Duration(0)
	for i, take := range res.Reservation().Takes {
		at := looks[i].answer.at
		state := calls[i].state(calls[i].At(looks[i].balance(), at.UnixMicro()))
		run := state.PausedUntil
		if take.Ahead() {
			run, _ = take.RunAt(state)
		}
		left = max(left, run.Sub(at))
	}
	return left, nil
}
