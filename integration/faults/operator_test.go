package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// operate changes limits with shards while they are in use, until it is to stop: it gives them more
// shards or fewer, pauses them and ends pauses. What becomes of an attempt does not matter: nothing
// of it may make a token or lose one.
func operate(ctx context.Context, a *app, d *desk, stopping <-chan struct{}) {
	for {
		select {
		case <-stopping:
			return
		case <-time.After(20*time.Millisecond + rand.N(100*time.Millisecond)):
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		if a.change(ctx, d) == nil { // the server may be away
			a.changes.Add(1)
		}
		cancel()
	}
}

func (a *app) change(ctx context.Context, d *desk) error {
	i := rand.N(len(pages))
	name, page := pages[i], d.page[i].Load()
	request := limits[name].For(fmt.Sprintf("%s-%d", d.name, page))
	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return a.limiter.InTxOptions(ctx, a.pool, readCommitted, func(ctx context.Context, tx pgx.Tx) error {
		switch kind := rand.N(4); {
		case kind == 0:
			return a.limiter.Pause(ctx, tx, time.Duration(1+rand.N(10))*time.Millisecond, request)
		case kind == 1 && name != "reserved": // where it would end what a change of shards has paused
			return a.limiter.Resume(ctx, tx, request)
		case name != "reserved":
			return a.limiter.Reshard(ctx, tx, 1+rand.N(8), request)
		case d.operated.Swap(page+1) <= page: // once a key: lines become longer by it, and last for decades as they are
			return a.limiter.Reshard(ctx, tx, 2+rand.N(7), request)
		}
		return nil
	})
}
