package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// operate changes limits with shards while they are in use, until it is to stop: it gives them more
// shards or fewer, pauses them and ends pauses. What becomes of an attempt does not matter: nothing
// of it may make a token or lose one.
func operate(ctx context.Context, a *app, d *desk, shards int, stopping <-chan struct{}) {
	for {
		select {
		case <-stopping:
			return
		case <-time.After(20*time.Millisecond + rand.N(100*time.Millisecond)):
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		if counter, err := a.change(ctx, d, shards); err == nil { // the server may be away
			counter.Add(1)
		}
		cancel()
	}
}

// change changes a limit, and returns the counter of such changes.
func (a *app) change(ctx context.Context, d *desk, shards int) (*atomic.Int64, error) {
	i, kind := rand.N(len(pages)), rand.N(4)
	name, page := pages[i], d.page[i].Load()
	request := limits[name].For(fmt.Sprintf("%s-%d", d.name, page))
	counter := new(atomic.Int64)
	var do func(ctx context.Context, tx pgx.Tx) error
	switch {
	case kind == 0:
		counter, do = &a.done.pauses, func(ctx context.Context, tx pgx.Tx) error {
			return a.limiter.Pause(ctx, tx, time.Duration(1+rand.N(10))*time.Millisecond, request)
		}
	case name != "reserved" && kind == 1: // elsewhere a change of shards has paused more
		do = func(ctx context.Context, tx pgx.Tx) error { return a.limiter.Resume(ctx, tx, request) }
	case name != "reserved":
		counter, do = &a.done.reshardings, func(ctx context.Context, tx pgx.Tx) error {
			return a.limiter.Reshard(ctx, tx, 1+rand.N(8), request)
		}
	case d.operated.Swap(page+1) <= page:
		// Once a key: lines become longer by it, and last for decades as they are.
		n := shards + rand.N(4)
		if rand.N(4) == 0 {
			n = 2 + rand.N(3) // the next call makes it as many as it defines, and writes nothing down
		}
		counter, do = &a.done.reshardings, func(ctx context.Context, tx pgx.Tx) error {
			return a.reshard(ctx, tx, n, request)
		}
	default:
		return counter, nil
	}
	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return counter, a.limiter.InTxOptions(ctx, a.pool, readCommitted, do)
}
