package weirtest

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/receipts"
	"github.com/weir-go/weir/ratelimit"
)

// settlement is what the real limiter stores of a reservation that was settled.
type settlement struct {
	id   uuid.UUID
	home string
}

// Settle is [ratelimit.Autocommit.Settle]. The reservation need not come from this Limiter.
func (l *Limiter) Settle(
	ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request,
) (bool, error) {
	return l.once(ctx, "Settle", r, used,
		func(t receipts.Take, row algebra.Row, now int64) algebra.Row {
			switch {
			case t.Used < t.Count:
				return t.Rule.Give(row, t.Receipt, t.Used, true, now)
			case t.Used > t.Count:
				return t.Rule.Charge(row, t.Used-t.Count, now)
			}
			return row
		})
}

// Release is [ratelimit.Autocommit.Release]. The reservation need not come from this Limiter.
func (l *Limiter) Release(ctx context.Context, r ratelimit.Reservation) (bool, error) {
	return l.once(ctx, "Release", r, nil,
		func(t receipts.Take, row algebra.Row, now int64) algebra.Row {
			return t.Rule.Give(row, t.Receipt, 0, t.AtOnce, now)
		})
}

// once settles a reservation, unless that was done before: to changes the row of each of its takes.
func (l *Limiter) once(
	ctx context.Context, verb string, r ratelimit.Reservation, used []ratelimit.Request,
	to func(receipts.Take, algebra.Row, int64) algebra.Row,
) (settled bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	receipt, err := r.Receipts(used...)
	if err == nil {
		err = l.fails(ctx)
	}
	now, which := l.now(), settlement{r.ID, receipt.Home}
	if settled = err == nil && !l.settled[which] && receipt.Until.After(now); settled {
		if l.settled == nil {
			l.settled = make(map[settlement]bool)
		}
		l.settled[which] = true
		for _, t := range receipt.Takes {
			a := account{t.Name, t.Key}
			if row := to(t, l.rows[a], now.UnixMicro()); row.Exists {
				l.put(a, row)
			}
		}
	}
	r.Takes = slices.Clone(r.Takes)
	l.calls = append(l.calls, Call{
		Verb: verb, Requests: slices.Clone(used), Reservation: r, Settled: settled, Err: err,
	})
	return settled, err
}

// ResetKey is [ratelimit.Autocommit.ResetKey].
func (l *Limiter) ResetKey(ctx context.Context, key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := badKey(ctx, key)
	if err == nil {
		err = l.fails(ctx)
	}
	if err == nil {
		now := l.now().UnixMicro()
		for a, row := range l.rows {
			if a.key == key {
				by := row.By // which stays the rule of the row
				l.rows[a] = by.Reset(row, now)
			}
		}
	}
	l.calls = append(l.calls, Call{Verb: "ResetKey", Key: key, Err: err})
	return err
}

// badKey has a limiter without a database look at the key, which it does first.
func badKey(ctx context.Context, key string) error {
	err := new(ratelimit.Limiter).In(nil).ResetKey(ctx, key)
	var invalid *ratelimit.InvalidError
	if errors.As(err, &invalid) && invalid.Field == "key" {
		return err
	}
	return nil
}
